//! The walk: a training step as a list of tensor lifetimes, in the framework's order.
//!
//! [`tape`] runs the operations of [`ops`], which know what each allocates, saves and allocates again in backward;
//! [`autograd`] runs backward in PyTorch's order; [`checkpoint`] drops and runs again; [`train`] is the loop around
//! them; [`replay`] runs the list through the caching allocator, and [`readings`] are what a loop would have read. Families (in [`crate::model`]) say which operations run; optimizers (in [`crate::recipe`]) what a step adds.

pub(crate) mod actors;
pub(crate) mod adapters;
pub mod autograd;
pub mod capacity;
pub mod checkpoint;
pub(crate) mod freeze;
pub(crate) mod load;
pub mod log;
pub(crate) mod megatron;
pub mod ops;
pub(crate) mod parallel;
pub(crate) mod ppo;
pub mod readings;
pub mod repeat;
pub mod replay;
pub(crate) mod rollout;
pub mod shape;
pub mod tape;
pub mod tensor;
pub mod train;
pub(crate) mod transformer_engine;
