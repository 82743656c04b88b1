"""f32 operands of tile products: sums of bf16 terms, or scaled int8 slices; how they are packed and multiplied."""
