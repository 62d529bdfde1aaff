// This page's camera and microphone, and their WebRTC session with the server.

const WANTED = {
  video: { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 30 } },
  audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false },
};
const GATHERING_MS = 2000;

export class Camera {
  #video;
  #send;
  #media = null;
  #connection = null;

  constructor(video, send) {
    this.#video = video;
    this.#send = send;
  }

  // Asks for the devices, the first time, and offers them to the server.
  async offer() {
    this.#media ??= await devices();
    this.#video.srcObject = this.#media;
    this.#video.hidden = false;
    this.#video.play();
    this.#connection?.close();
    const connection = new RTCPeerConnection({ iceServers: [] });
    this.#connection = connection;
    for (const track of this.#media.getTracks()) connection.addTrack(track, this.#media);
    await connection.setLocalDescription(await connection.createOffer());
    await gathered(connection);
    this.#send({ type: "offer", sdp: connection.localDescription.sdp });
  }

  async answer(sdp) {
    await this.#connection?.setRemoteDescription({ type: "answer", sdp });
  }

  stop() {
    this.#connection?.close();
    this.#connection = null;
    for (const track of this.#media?.getTracks() ?? []) track.stop();
    this.#media = null;
    this.#video.srcObject = null;
    this.#video.hidden = true;
  }

  explain(error) {
    if (!navigator.mediaDevices) {
      return "The browser gives cameras only to pages of this computer, or over HTTPS.";
    }
    const texts = {
      NotAllowedError: "The browser was not allowed to use the camera and the microphone.",
      NotFoundError: "There is neither a camera nor a microphone.",
      NotReadableError: "The camera or the microphone is used by another program.",
    };
    return texts[error.name] ?? `The camera cannot be used: ${error.message}`;
  }
}

// Both devices, or the one that there is.
async function devices() {
  try {
    return await navigator.mediaDevices.getUserMedia(WANTED);
  } catch (error) {
    if (error.name !== "NotFoundError") throw error;
  }
  try {
    return await navigator.mediaDevices.getUserMedia({ video: WANTED.video });
  } catch (error) {
    if (error.name !== "NotFoundError") throw error;
  }
  return navigator.mediaDevices.getUserMedia({ audio: WANTED.audio });
}

// Waits until the ways to this browser are known, so that one offer has them all.
function gathered(connection) {
  return new Promise((resolve) => {
    const look = () => connection.iceGatheringState === "complete" && resolve();
    connection.addEventListener("icegatheringstatechange", look);
    setTimeout(resolve, GATHERING_MS);
    look();
  });
}
