//! The op vocabulary: what each ATen operation allocates, what it saves, and what its backward allocates.
//!
//! Every rule is PyTorch's eager CUDA path, read in `tools/autograd/derivatives.yaml` and the kernels at 2.15 and checked
//! against recorded allocations; where an older version differs, the rule says so.

mod adapter;
mod attention;
mod convolution;
mod efficient_kernel;
mod embedding;
mod flash_package;
mod float8;
mod folded;
mod fused_4bit;
mod fused_head;
mod image;
mod liger;
mod linear_cross_entropy;
mod logits;
mod loss;
mod math_attention;
mod matmul;
mod moe;
mod norm;
mod packed;
mod pointwise;
mod quantized;
pub(crate) mod reduce;
mod sort;
mod view;

pub use attention::{AttentionShape, SdpaPath};
pub use convolution::Window;
pub(crate) use flash_package::Sequences;
pub use float8::FLOAT8_MULTIPLE;
pub(crate) use fused_head::Extras;
pub(crate) use matmul::WeightLayout;
pub(crate) use quantized::{BLOCK, Code, NESTED_BLOCK, Quantized};
