// What all canvases of the page share: sharp pixels, and the colors of the style sheet.

let styles = null;

export function style(name) {
  styles ??= getComputedStyle(document.documentElement);
  return styles.getPropertyValue(name).trim();
}

// The context of a canvas at the resolution of the screen, in units of CSS pixels.
export function fitted(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = devicePixelRatio;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height };
}
