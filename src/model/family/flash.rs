//! Attention through the package flash-attn (`attn_implementation="flash_attention_2"`), as transformers calls it
//! (`integrations/flash_attention.py` and `modeling_flash_attention_utils.py`, 5.24).

use crate::model::family::common::Run;
use crate::step::ops::Sequences;
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// Attention of q [b, a, s, d] over k, v [b, g, s, d], causal, within a window or over all: the kernels need no mask for
/// any of them. Returns [b, s, a·d].
pub(super) fn attend_by_package(run: &Run, qkv: [&Tensor; 3], dropout: f64, width: Dim) -> Tensor {
    let t = &run.tape;
    let (b, s) = (qkv[0].dim(0), qkv[0].dim(2));
    let rows = qkv.map(|x| t.transpose(x, 1, 2));
    // What autocast or norms in FP32 left so (`get_target_dtype`).
    let fits = rows[0].dtype() != Dtype::F32;
    let half = t.autocast().unwrap_or(run.loaded);
    let cast = rows.each_ref().map(|x| if fits { x.clone() } else { t.to(x, half) });
    let [q, k, v] = cast.each_ref();
    if b.n == 1 {
        tells_packed(t, s);
    }
    let out = if let Some(count) = run.packed {
        let flat = [q, k, v].map(|x| t.reshape(&t.contiguous(x), &[s, x.dim(2), x.dim(3)]));
        let sequences = sequences(t, s, count);
        t.flash_package(flat.each_ref(), Some(&sequences), dropout)
    } else {
        t.flash_package([q, k, v], None, dropout)
    };
    t.reshape(&out, &[b, s, width])
}

/// `_is_packed_sequence`: whether the positions of the only row differ from a running count. Every layer asks.
fn tells_packed(t: &Tape, s: Dim) {
    let line = |n: Dim| t.temp(Shape::new(&[n]), Dtype::I64, "positions");
    let range = line(s);
    let least = t.scalar(Dtype::I64, "positions");
    let count = line(s);
    drop((least, range));
    let differences = line(s);
    let sizes = line(s);
    drop(differences);
    let sum = t.scalar(Dtype::I64, "positions");
    drop(sizes);
    let any = t.scalar(Dtype::Bool, "positions");
    drop((sum, any, count));
}

/// `prepare_fa_kwargs_from_position_ids`: where each of `count` sequences begins and how long the longest is.
fn sequences(t: &Tape, s: Dim, count: u64) -> Sequences {
    let indices = {
        let least = t.scalar(Dtype::I64, "positions");
        let begins = t.temp(Shape::new(&[s]), Dtype::Bool, "positions");
        let indices = t.temp(Shape::new(&[Dim::plain(count)]), Dtype::I64, "sequence starts");
        drop((begins, least));
        indices
    };
    let line = |n: u64| t.temp(Shape::new(&[Dim::plain(n)]), Dtype::I32, "sequence starts");
    let (first, last) = (line(count), line(1));
    let starts = line(count.saturating_add(1));
    drop((last, first));
    let lengths = line(count);
    let longest = t.scalar(Dtype::I32, "longest sequence");
    drop((lengths, indices, longest));
    Sequences { starts, count }
}
