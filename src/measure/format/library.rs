//! Libraries whose workspace or handle did not fit beside the caching allocator: cuBLAS, cuDNN, cuSOLVER. No figures.

use crate::measure::format::messages::Kind;
use crate::measure::{Failure, FailureKind, FormatId, Measurement, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::LibraryOom,
    marks: &[
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "CUSOLVER_STATUS_ALLOC_FAILED",
        "CUSPARSE_STATUS_ALLOC_FAILED",
        "CUFFT_ALLOC_FAILED",
        "CUBLAS_STATUS_NOT_INITIALIZED",
        "CUDNN_STATUS_INTERNAL_ERROR",
    ],
    read,
};

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let len = text[at..].bytes().take_while(|b| b.is_ascii_uppercase() || *b == b'_').count();
    let mut message = Measurement::of(Source::new(FormatId::LibraryOom));
    message.failure = Some(Failure { what: Some(text[at..at + len].to_owned()), ..Failure::new(FailureKind::Library) });
    Some((message, at + len))
}
