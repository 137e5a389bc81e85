//! The driver's own error without figures: what a direct call raises, and PyTorch's only message before 1.0.

use crate::measure::format::messages::Kind;
use crate::measure::{Backend, Failure, FailureKind, FormatId, Measurement, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::CudaError,
    marks: &[
        "CUDAerror:outofmemory",
        "cudaruntimeerror(2):outofmemory",
        "cudaruntimeerr(2):outofmemory",
        "HIPerror:outofmemory",
        "error=2:outofmemory",
        "ErrorCUDAoutofmemoryatline",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ],
    read,
};

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let mut message = Measurement::of(Source::new(FormatId::CudaError));
    let backend = if text[at..].starts_with("HIP") { Backend::Hip } else { Backend::Cuda };
    message.failure = Some(Failure { backend: Some(backend), ..Failure::new(FailureKind::Driver) });
    Some((message, at + "HIPerror:".len()))
}
