"""TFLite's schema, as far as it is needed: written by `python -m scripts.tflite_schema`.

The tables are those of the file itself and the parameters of operators. A table's fields stand in
their order, as `Name:type=default`; "-" is a field that is not used any more. A type is a letter of
the module struct, with a star for a list of them, or `text`, `table`, `tables` or `union`.
"""

from __future__ import annotations

FILE_TABLES = (
    "Model OperatorCode SubGraph Tensor QuantizationParameters Operator Buffer Metadata "
    "SignatureDef TensorMap"
)
"""The tables that make up a file."""

TENSOR_TYPES = (
    "FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 "
    "RESOURCE VARIANT UINT32 UINT16 INT4 BFLOAT16"
)
"""Their names, in the order of their numbers."""

OPERATORS = (
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE "
    "EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D "
    "LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 "
    "RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS "
    "SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER "
    "BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE "
    "UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT "
    "LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG "
    "PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE "
    "EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD "
    "REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV "
    "REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU "
    "SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE "
    "RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE "
    "NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM "
    "BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D "
    "IMAG REAL COMPLEX_ABS HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL "
    "CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS "
    "RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE "
    "RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 "
    "UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD "
    "STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP "
    "STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE "
    "STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE "
    "STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE "
    "STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT "
    "STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT "
    "STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA "
    "STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE "
    "STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW "
    "STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT"
)
"""Their names, in the order of their numbers."""

OPTIONS = (
    "NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions LSHProjectionOptions "
    "Pool2DOptions SVDFOptions RNNOptions FullyConnectedOptions SoftmaxOptions "
    "ConcatenationOptions AddOptions L2NormOptions LocalResponseNormalizationOptions LSTMOptions "
    "ResizeBilinearOptions CallOptions ReshapeOptions SkipGramOptions SpaceToDepthOptions "
    "EmbeddingLookupSparseOptions MulOptions PadOptions GatherOptions BatchToSpaceNDOptions "
    "SpaceToBatchNDOptions TransposeOptions ReducerOptions SubOptions DivOptions SqueezeOptions "
    "SequenceRNNOptions StridedSliceOptions ExpOptions TopKV2Options SplitOptions "
    "LogSoftmaxOptions CastOptions DequantizeOptions MaximumMinimumOptions ArgMaxOptions "
    "LessOptions NegOptions PadV2Options GreaterOptions GreaterEqualOptions LessEqualOptions "
    "SelectOptions SliceOptions TransposeConvOptions SparseToDenseOptions TileOptions "
    "ExpandDimsOptions EqualOptions NotEqualOptions ShapeOptions PowOptions ArgMinOptions "
    "FakeQuantOptions PackOptions LogicalOrOptions OneHotOptions LogicalAndOptions "
    "LogicalNotOptions UnpackOptions FloorDivOptions SquareOptions ZerosLikeOptions FillOptions "
    "BidirectionalSequenceLSTMOptions BidirectionalSequenceRNNOptions "
    "UnidirectionalSequenceLSTMOptions FloorModOptions RangeOptions ResizeNearestNeighborOptions "
    "LeakyReluOptions SquaredDifferenceOptions MirrorPadOptions AbsOptions SplitVOptions "
    "UniqueOptions ReverseV2Options AddNOptions GatherNdOptions CosOptions WhereOptions "
    "RankOptions ReverseSequenceOptions MatrixDiagOptions QuantizeOptions MatrixSetDiagOptions "
    "HardSwishOptions IfOptions WhileOptions DepthToSpaceOptions NonMaxSuppressionV4Options "
    "NonMaxSuppressionV5Options ScatterNdOptions SelectV2Options DensifyOptions SegmentSumOptions "
    "BatchMatMulOptions CumsumOptions CallOnceOptions BroadcastToOptions Rfft2dOptions "
    "Conv3DOptions HashtableOptions HashtableFindOptions HashtableImportOptions "
    "HashtableSizeOptions VarHandleOptions ReadVariableOptions AssignVariableOptions "
    "RandomOptions BucketizeOptions GeluOptions DynamicUpdateSliceOptions "
    "UnsortedSegmentProdOptions UnsortedSegmentMaxOptions UnsortedSegmentMinOptions "
    "UnsortedSegmentSumOptions ATan2Options SignOptions BitcastOptions BitwiseXorOptions "
    "RightShiftOptions"
)
"""The tables of parameters, in the order of their numbers."""

TABLES = {
    "Model": (
        "Version:I OperatorCodes:tables Subgraphs:tables Description:text Buffers:tables "
        "MetadataBuffer:*i Metadata:tables SignatureDefs:tables"
    ),
    "OperatorCode": "DeprecatedBuiltinCode:b CustomCode:text Version:i=1 BuiltinCode:i",
    "SubGraph": (
        "Tensors:tables Inputs:*i Outputs:*i Operators:tables Name:text DebugMetadataIndex:i=-1"
    ),
    "Tensor": (
        "Shape:*i Type:b Buffer:I Name:text Quantization:table IsVariable:? Sparsity:table "
        "ShapeSignature:*i HasRank:? VariantTensors:tables"
    ),
    "QuantizationParameters": (
        "Min:*f Max:*f Scale:*f ZeroPoint:*q DetailsType:B Details:union QuantizedDimension:i"
    ),
    "Operator": (
        "OpcodeIndex:I Inputs:*i Outputs:*i BuiltinOptionsType:B BuiltinOptions:union "
        "CustomOptions:*B CustomOptionsFormat:b MutatingVariableInputs:*? Intermediates:*i "
        "LargeCustomOptionsOffset:Q LargeCustomOptionsSize:Q BuiltinOptions2Type:B "
        "BuiltinOptions2:union DebugMetadataIndex:i=-1"
    ),
    "Buffer": "Data:*B Offset:Q Size:Q",
    "Metadata": "Name:text Buffer:I",
    "SignatureDef": "Inputs:tables Outputs:tables SignatureKey:text - SubgraphIndex:I",
    "TensorMap": "Name:text TensorIndex:I",
    "Conv2DOptions": (
        "Padding:b StrideW:i StrideH:i FusedActivationFunction:b DilationWFactor:i=1 "
        "DilationHFactor:i=1 QuantizedBiasType:b"
    ),
    "DepthwiseConv2DOptions": (
        "Padding:b StrideW:i StrideH:i DepthMultiplier:i FusedActivationFunction:b "
        "DilationWFactor:i=1 DilationHFactor:i=1"
    ),
    "ConcatEmbeddingsOptions": "NumChannels:i NumColumnsPerChannel:*i EmbeddingDimPerChannel:*i",
    "LSHProjectionOptions": "Type:b",
    "Pool2DOptions": (
        "Padding:b StrideW:i StrideH:i FilterWidth:i FilterHeight:i FusedActivationFunction:b"
    ),
    "SVDFOptions": "Rank:i FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "RNNOptions": "FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "FullyConnectedOptions": (
        "FusedActivationFunction:b WeightsFormat:b KeepNumDims:? AsymmetricQuantizeInputs:? "
        "QuantizedBiasType:b"
    ),
    "SoftmaxOptions": "Beta:f",
    "ConcatenationOptions": "Axis:i FusedActivationFunction:b",
    "AddOptions": "FusedActivationFunction:b PotScaleInt16:?=1",
    "L2NormOptions": "FusedActivationFunction:b",
    "LocalResponseNormalizationOptions": "Radius:i Bias:f Alpha:f Beta:f",
    "LSTMOptions": (
        "FusedActivationFunction:b CellClip:f ProjClip:f KernelType:b AsymmetricQuantizeInputs:?"
    ),
    "ResizeBilinearOptions": "- - AlignCorners:? HalfPixelCenters:?",
    "CallOptions": "Subgraph:I",
    "ReshapeOptions": "NewShape:*i",
    "SkipGramOptions": "NgramSize:i MaxSkipSize:i IncludeAllNgrams:?",
    "SpaceToDepthOptions": "BlockSize:i",
    "EmbeddingLookupSparseOptions": "Combiner:b",
    "MulOptions": "FusedActivationFunction:b",
    "PadOptions": "",
    "GatherOptions": "Axis:i BatchDims:i",
    "BatchToSpaceNDOptions": "",
    "SpaceToBatchNDOptions": "",
    "TransposeOptions": "",
    "ReducerOptions": "KeepDims:?",
    "SubOptions": "FusedActivationFunction:b PotScaleInt16:?=1",
    "DivOptions": "FusedActivationFunction:b",
    "SqueezeOptions": "SqueezeDims:*i",
    "SequenceRNNOptions": "TimeMajor:? FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "StridedSliceOptions": (
        "BeginMask:i EndMask:i EllipsisMask:i NewAxisMask:i ShrinkAxisMask:i Offset:?"
    ),
    "ExpOptions": "",
    "TopKV2Options": "",
    "SplitOptions": "NumSplits:i",
    "LogSoftmaxOptions": "",
    "CastOptions": "InDataType:b OutDataType:b",
    "DequantizeOptions": "",
    "MaximumMinimumOptions": "",
    "ArgMaxOptions": "OutputType:b",
    "LessOptions": "",
    "NegOptions": "",
    "PadV2Options": "",
    "GreaterOptions": "",
    "GreaterEqualOptions": "",
    "LessEqualOptions": "",
    "SelectOptions": "",
    "SliceOptions": "",
    "TransposeConvOptions": (
        "Padding:b StrideW:i StrideH:i FusedActivationFunction:b QuantizedBiasType:b"
    ),
    "SparseToDenseOptions": "ValidateIndices:?",
    "TileOptions": "",
    "ExpandDimsOptions": "",
    "EqualOptions": "",
    "NotEqualOptions": "",
    "ShapeOptions": "OutType:b",
    "PowOptions": "",
    "ArgMinOptions": "OutputType:b",
    "FakeQuantOptions": "Min:f Max:f NumBits:i NarrowRange:?",
    "PackOptions": "ValuesCount:i Axis:i",
    "LogicalOrOptions": "",
    "OneHotOptions": "Axis:i",
    "LogicalAndOptions": "",
    "LogicalNotOptions": "",
    "UnpackOptions": "Num:i Axis:i",
    "FloorDivOptions": "",
    "SquareOptions": "",
    "ZerosLikeOptions": "",
    "FillOptions": "",
    "BidirectionalSequenceLSTMOptions": (
        "FusedActivationFunction:b CellClip:f ProjClip:f MergeOutputs:? TimeMajor:?=1 "
        "AsymmetricQuantizeInputs:?"
    ),
    "BidirectionalSequenceRNNOptions": (
        "TimeMajor:? FusedActivationFunction:b MergeOutputs:? AsymmetricQuantizeInputs:?"
    ),
    "UnidirectionalSequenceLSTMOptions": (
        "FusedActivationFunction:b CellClip:f ProjClip:f TimeMajor:? AsymmetricQuantizeInputs:? "
        "DiagonalRecurrentTensors:?"
    ),
    "FloorModOptions": "",
    "RangeOptions": "",
    "ResizeNearestNeighborOptions": "AlignCorners:? HalfPixelCenters:?",
    "LeakyReluOptions": "Alpha:f",
    "SquaredDifferenceOptions": "",
    "MirrorPadOptions": "Mode:b",
    "AbsOptions": "",
    "SplitVOptions": "NumSplits:i",
    "UniqueOptions": "IdxOutType:b=2",
    "ReverseV2Options": "",
    "AddNOptions": "",
    "GatherNdOptions": "",
    "CosOptions": "",
    "WhereOptions": "",
    "RankOptions": "",
    "ReverseSequenceOptions": "SeqDim:i BatchDim:i",
    "MatrixDiagOptions": "",
    "QuantizeOptions": "",
    "MatrixSetDiagOptions": "",
    "HardSwishOptions": "",
    "IfOptions": "ThenSubgraphIndex:i ElseSubgraphIndex:i",
    "WhileOptions": "CondSubgraphIndex:i BodySubgraphIndex:i",
    "DepthToSpaceOptions": "BlockSize:i",
    "NonMaxSuppressionV4Options": "",
    "NonMaxSuppressionV5Options": "",
    "ScatterNdOptions": "",
    "SelectV2Options": "",
    "DensifyOptions": "",
    "SegmentSumOptions": "",
    "BatchMatMulOptions": "AdjX:? AdjY:? AsymmetricQuantizeInputs:?",
    "CumsumOptions": "Exclusive:? Reverse:?",
    "CallOnceOptions": "InitSubgraphIndex:i",
    "BroadcastToOptions": "",
    "Rfft2dOptions": "",
    "Conv3DOptions": (
        "Padding:b StrideD:i StrideW:i StrideH:i FusedActivationFunction:b DilationDFactor:i=1 "
        "DilationWFactor:i=1 DilationHFactor:i=1"
    ),
    "HashtableOptions": "TableId:i KeyDtype:b ValueDtype:b",
    "HashtableFindOptions": "",
    "HashtableImportOptions": "",
    "HashtableSizeOptions": "",
    "VarHandleOptions": "Container:text SharedName:text",
    "ReadVariableOptions": "",
    "AssignVariableOptions": "",
    "RandomOptions": "Seed:q Seed2:q",
    "BucketizeOptions": "Boundaries:*f",
    "GeluOptions": "Approximate:?",
    "DynamicUpdateSliceOptions": "",
    "UnsortedSegmentProdOptions": "",
    "UnsortedSegmentMaxOptions": "",
    "UnsortedSegmentMinOptions": "",
    "UnsortedSegmentSumOptions": "",
    "ATan2Options": "",
    "SignOptions": "",
    "BitcastOptions": "",
    "BitwiseXorOptions": "",
    "RightShiftOptions": "",
}
"""The fields of each table."""

PARAMETERS = {
    "ADD": "AddOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "CONCATENATION": "ConcatenationOptions",
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions",
    "L2_NORMALIZATION": "L2NormOptions",
    "L2_POOL_2D": "Pool2DOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
    "LSH_PROJECTION": "LSHProjectionOptions",
    "LSTM": "LSTMOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MUL": "MulOptions",
    "RESHAPE": "ReshapeOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RNN": "RNNOptions",
    "SOFTMAX": "SoftmaxOptions",
    "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "SVDF": "SVDFOptions",
    "CONCAT_EMBEDDINGS": "ConcatEmbeddingsOptions",
    "SKIP_GRAM": "SkipGramOptions",
    "CALL": "CallOptions",
    "EMBEDDING_LOOKUP_SPARSE": "EmbeddingLookupSparseOptions",
    "UNIDIRECTIONAL_SEQUENCE_RNN": "SequenceRNNOptions",
    "GATHER": "GatherOptions",
    "MEAN": "ReducerOptions",
    "SUB": "SubOptions",
    "DIV": "DivOptions",
    "SQUEEZE": "SqueezeOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
    "STRIDED_SLICE": "StridedSliceOptions",
    "BIDIRECTIONAL_SEQUENCE_RNN": "BidirectionalSequenceRNNOptions",
    "SPLIT": "SplitOptions",
    "BIDIRECTIONAL_SEQUENCE_LSTM": "BidirectionalSequenceLSTMOptions",
    "CAST": "CastOptions",
    "ARG_MAX": "ArgMaxOptions",
    "TRANSPOSE_CONV": "TransposeConvOptions",
    "SPARSE_TO_DENSE": "SparseToDenseOptions",
    "SUM": "ReducerOptions",
    "SHAPE": "ShapeOptions",
    "ARG_MIN": "ArgMinOptions",
    "FAKE_QUANT": "FakeQuantOptions",
    "REDUCE_PROD": "ReducerOptions",
    "REDUCE_MAX": "ReducerOptions",
    "PACK": "PackOptions",
    "ONE_HOT": "OneHotOptions",
    "UNPACK": "UnpackOptions",
    "REDUCE_MIN": "ReducerOptions",
    "REDUCE_ANY": "ReducerOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "LEAKY_RELU": "LeakyReluOptions",
    "MIRROR_PAD": "MirrorPadOptions",
    "SPLIT_V": "SplitVOptions",
    "UNIQUE": "UniqueOptions",
    "REVERSE_SEQUENCE": "ReverseSequenceOptions",
    "IF": "IfOptions",
    "WHILE": "WhileOptions",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "CUMSUM": "CumsumOptions",
    "CALL_ONCE": "CallOnceOptions",
    "CONV_3D": "Conv3DOptions",
    "HASHTABLE": "HashtableOptions",
    "REDUCE_ALL": "ReducerOptions",
    "CONV_3D_TRANSPOSE": "Conv3DOptions",
    "VAR_HANDLE": "VarHandleOptions",
    "RANDOM_STANDARD_NORMAL": "RandomOptions",
    "BUCKETIZE": "BucketizeOptions",
    "RANDOM_UNIFORM": "RandomOptions",
    "MULTINOMIAL": "RandomOptions",
    "GELU": "GeluOptions",
}
"""The table of parameters of each operator that has some."""
