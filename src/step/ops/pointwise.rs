//! Elementwise operations, casts and reductions.

use crate::bill::Part;
use crate::step::autograd::{Grads, Recorder, grads_of};
use crate::step::shape::{Dim, Shape};
use crate::step::tape::Tape;
use crate::step::tensor::{Dtype, Tensor};

/// The one gradient that arrives at an operation with one output.
pub(super) fn first(grads: &[Option<Tensor>]) -> Option<&Tensor> {
    grads.first().and_then(Option::as_ref)
}

impl Tape {
    /// The result of an elementwise operation over `operands`, laid out as `TensorIterator` would.
    pub(crate) fn elementwise(&self, operands: &[&Tensor], dtype: Dtype, op: &'static str) -> Tensor {
        let shape = match operands {
            [x] => x.shape().like(),
            [a, b] if a.shape() == b.shape() => a.shape().like(),
            [a, b] => a.shape().broadcast(b.shape()).ordered_like(&[a.shape(), b.shape()]),
            _ => {
                let shapes: Vec<&Shape> = operands.iter().map(|t| t.shape()).collect();
                let sizes = shapes.iter().fold(Shape::new(&[]), |all, s| all.broadcast(s));
                sizes.ordered_like(&shapes)
            }
        };
        self.temp(shape, dtype, op)
    }

    /// A cast outside the graph; keeps the layout (`to` preserves dense strides).
    pub(crate) fn cast_raw(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        self.temp(x.shape().like(), dtype, "cast")
    }

    /// `x.to(dtype)`: nothing when it already is. Backward casts back.
    #[must_use]
    pub fn to(&self, x: &Tensor, dtype: Dtype) -> Tensor {
        if x.dtype() == dtype {
            return x.clone();
        }
        let r = Recorder::begin(self, &[x]);
        let from = x.dtype();
        let out = self.cast_raw(x, dtype);
        r.finish(out, move |t, g| grads_of([first(g).map(|g| t.cast_raw(g, from))]))
    }

    /// An operand as autocast gives it to an operation of the lower-precision list; casts of FP32 leaves are cached.
    pub(crate) fn autocast_lower(&self, x: &Tensor) -> Tensor {
        let Some(dtype) = self.autocast() else { return x.clone() };
        if x.dtype() == dtype || !x.dtype().is_floating() {
            return x.clone();
        }
        let replica = self.wrapper().is_some_and(|wrapper| wrapper.replicates());
        let leaf = x.gathering_node().filter(|_| x.dtype() == Dtype::F32 && !replica);
        if let Some(id) = leaf
            && let Some(cast) = self.cached_cast(id)
        {
            return cast;
        }
        let cast = self.to(x, dtype);
        if let Some(id) = leaf {
            if !self.stopped() {
                self.becomes(&cast, Part::Activations);
            }
            self.cache_cast(id, &cast);
        }
        cast
    }

    /// An operand as autocast gives it to an operation of the FP32 list.
    #[must_use]
    pub fn autocast_f32(&self, x: &Tensor) -> Tensor {
        if self.autocast().is_some() && x.dtype().is_half() { self.to(x, Dtype::F32) } else { x.clone() }
    }

    /// `a + b`.
    #[must_use]
    pub fn add(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let out = self.elementwise(&[a, b], a.dtype().promoted(b.dtype()), "add");
        let (ga, gb) = (a.requires_grad(), b.requires_grad());
        r.finish(out, move |_, g| {
            let g = first(g);
            grads_of([g.filter(|_| ga).cloned(), g.filter(|_| gb).cloned()])
        })
    }

    /// `a - b`.
    #[must_use]
    pub fn sub(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let out = self.elementwise(&[a, b], a.dtype().max(b.dtype()), "difference");
        let (ga, gb) = (a.requires_grad(), b.requires_grad());
        r.finish(out, move |t, g| {
            let Some(g) = first(g) else { return Grads::default() };
            // Generated code handles `other` before `self`.
            let negated = gb.then(|| t.elementwise(&[g], g.dtype(), "grad of difference"));
            grads_of([ga.then(|| g.clone()), negated])
        })
    }

    /// `a += b`.
    #[must_use]
    pub fn add_in_place(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let out = a.alias(*a.shape());
        let (ga, gb) = (a.requires_grad(), b.requires_grad());
        r.finish(out, move |_, g| {
            let g = first(g);
            grads_of([g.filter(|_| ga).cloned(), g.filter(|_| gb).cloned()])
        })
    }

    /// `x /= c` for a Python number.
    #[must_use]
    pub fn scale_in_place(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = x.alias(*x.shape());
        r.finish(out, |t, g| grads_of([first(g).map(|g| t.elementwise(&[g], g.dtype(), "grad of scale"))]))
    }

    /// `x + c` for a Python number.
    #[must_use]
    pub fn add_scalar(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.elementwise(&[x], x.dtype(), "add");
        r.finish(out, |_, g| grads_of([first(g).cloned()]))
    }

    /// `x × c` for a Python number.
    #[must_use]
    pub fn mul_scalar(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.elementwise(&[x], x.dtype(), "scale");
        r.finish(out, |t, g| grads_of([first(g).map(|g| t.elementwise(&[g], g.dtype(), "grad of scale"))]))
    }

    /// `clamp` between two tensors. Backward (as recorded with PyTorch 2.15) asks on each side whether the operand is beyond the bound,
    /// by masks that are joined, and chooses between the gradient and zero for each.
    pub(crate) fn clamp_between(&self, x: &Tensor, bounds: [&Tensor; 2]) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let (saved, bounds) = (r.save(x), bounds.map(|bound| r.save(bound)));
        let out = self.elementwise(&[x], x.dtype(), "clamp");
        r.finish(out, move |t, g| {
            let bounds = bounds.each_ref().map(|bound| bound.unpack(t));
            let (Some(g), Some(x)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            let zero = t.scalar(Dtype::Bool, "zero");
            let mask = || t.elementwise(&[&x], Dtype::Bool, "within bounds");
            let below = {
                let joined = [(); 3].map(|()| mask());
                let below = mask();
                drop(joined);
                below
            };
            let above = {
                let above = mask();
                let joined = [(); 2].map(|()| mask());
                drop(joined);
                above
            };
            let once = t.elementwise(&[g], g.dtype(), "grad of clamp");
            let out = t.elementwise(&[g], g.dtype(), "grad of clamp");
            drop((once, below, above, zero, bounds));
            grads_of([Some(out)])
        })
    }

    /// `a × b`. Each operand is saved when the other needs a gradient.
    #[must_use]
    pub fn mul(&self, a: &Tensor, b: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[a, b]);
        let (ga, gb) = (a.requires_grad(), b.requires_grad());
        let (sb, sa) = (r.save_if(ga, b), r.save_if(gb, a));
        let out = self.elementwise(&[a, b], a.dtype().promoted(b.dtype()), "product");
        r.finish(out, move |t, g| {
            let mut out = Grads::default();
            let Some(g) = first(g) else { return out };
            let (b, a) = (sb.unpack(t), sa.unpack(t));
            // Generated code handles `other` before `self`.
            if let Some(a) = &a {
                out[1] = Some(t.elementwise(&[g, a], g.dtype().promoted(a.dtype()), "grad of product"));
            }
            if let Some(b) = &b {
                out[0] = Some(t.elementwise(&[g, b], g.dtype().promoted(b.dtype()), "grad of product"));
            }
            out
        })
    }

    /// `-x`.
    #[must_use]
    pub fn neg(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.elementwise(&[x], x.dtype(), "neg");
        r.finish(out, |t, g| grads_of([first(g).map(|g| t.elementwise(&[g], g.dtype(), "grad of neg"))]))
    }

    /// `x ** n` for a Python number other than 0 and 1. On autocast's FP32 list.
    #[must_use]
    pub fn pow(&self, x: &Tensor) -> Tensor {
        let x = &self.autocast_f32(x);
        let r = Recorder::begin(self, &[x]);
        let s = r.save(x);
        let out = self.elementwise(&[x], x.dtype(), "power");
        r.finish(out, move |t, g| {
            let (Some(g), Some(x)) = (first(g), s.unpack(t)) else { return Grads::default() };
            // grad × (n × xⁿ⁻¹)
            let power = t.elementwise(&[&x], x.dtype(), "grad of power");
            let scaled = t.elementwise(&[&power], x.dtype(), "grad of power");
            let out = t.elementwise(&[g, &scaled], x.dtype(), "grad of power");
            drop(scaled);
            drop(power);
            grads_of([Some(out)])
        })
    }

    /// `x.mean(-1, keepdim=True)`.
    #[must_use]
    pub fn mean_last(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let last = x.shape().rank() - 1;
        let full = *x.shape();
        let out = self.temp(full.narrowed(last, Dim::plain(1)).contiguous(), x.dtype(), "mean");
        r.finish(out, move |t, g| {
            grads_of([first(g).map(|g| {
                let expanded = g.alias(g.shape().expanded(last, full.dims()[last]));
                t.elementwise(&[&expanded], g.dtype(), "grad of mean")
            })])
        })
    }

    /// `rsqrt(x)`: saves its result. On autocast's FP32 list.
    #[must_use]
    pub fn rsqrt(&self, x: &Tensor) -> Tensor {
        let x = &self.autocast_f32(x);
        let r = Recorder::begin(self, &[x]);
        let out = self.elementwise(&[x], x.dtype(), "rsqrt");
        let s = r.save(&out);
        r.finish(out, move |t, g| {
            let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
            // -0.5 × grad × y³
            let cube = t.elementwise(&[&y], y.dtype(), "grad of rsqrt");
            let scaled = t.elementwise(&[g], y.dtype(), "grad of rsqrt");
            let out = t.elementwise(&[&scaled, &cube], y.dtype(), "grad of rsqrt");
            drop(scaled);
            drop(cube);
            grads_of([Some(out)])
        })
    }

    /// An activation that saves its input and whose backward is one kernel: SiLU, GELU.
    #[must_use]
    pub fn activation(&self, x: &Tensor, op: &'static str) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let s = r.save(x);
        let out = self.elementwise(&[x], x.dtype(), op);
        r.finish(out, move |t, g| {
            let (Some(g), Some(x)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.elementwise(&[g, &x], g.dtype(), "grad of activation"))])
        })
    }

    /// BLOOM's GELU: an autograd function of its own whose forward and backward are Python formulas (`GeLUFunction`).
    #[must_use]
    pub fn bloom_gelu(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let each = |t: &Self, a: &[&Tensor], op: &'static str| t.elementwise(a, a[0].dtype(), op);
        // tanh(0.79788456 × x × (1 + 0.044715 × x × x))
        let tanh = move |t: &Self, x: &Tensor, op: &'static str| {
            let inner = {
                let scaled = each(t, &[x], op);
                let shifted = {
                    let square = {
                        let scaled = each(t, &[x], op);
                        each(t, &[&scaled, x], op)
                    };
                    each(t, &[&square], op)
                };
                each(t, &[&scaled, &shifted], op)
            };
            each(t, &[&inner], op)
        };
        let out = {
            let half = each(self, &[x], "activation");
            let shifted = {
                let tanh = tanh(self, x, "activation");
                each(self, &[&tanh], "activation")
            };
            each(self, &[&half, &shifted], "activation")
        };
        let s = r.save(x);
        r.finish(out, move |t, g| {
            const OP: &str = "grad of activation";
            let (Some(g), Some(x)) = (first(g), s.unpack(t)) else { return Grads::default() };
            let of = |a: &[&Tensor]| each(t, a, OP);
            let tanh = tanh(t, &x, OP);
            // 0.5 × x × ((1 − tanh²) × (0.79788456 + 0.1070322243 × x × x)) + 0.5 × (1 + tanh)
            let slope = {
                let left = {
                    let half = of(&[&x]);
                    let product = {
                        let rest = {
                            let square = of(&[&tanh, &tanh]);
                            of(&[&square])
                        };
                        let polynomial = {
                            let square = {
                                let scaled = of(&[&x]);
                                of(&[&scaled, &x])
                            };
                            of(&[&square])
                        };
                        of(&[&rest, &polynomial])
                    };
                    of(&[&half, &product])
                };
                let right = {
                    let shifted = of(&[&tanh]);
                    of(&[&shifted])
                };
                of(&[&left, &right])
            };
            grads_of([Some(of(&[&slope, g]))])
        })
    }

    /// `relu(x)`: saves its result.
    #[must_use]
    pub fn relu(&self, x: &Tensor) -> Tensor {
        self.saving_its_result(x, ["activation", "grad of activation"])
    }

    /// `tanh(x)`: saves its result.
    #[must_use]
    pub fn tanh(&self, x: &Tensor) -> Tensor {
        self.saving_its_result(x, ["tanh", "grad of tanh"])
    }

    /// `sigmoid(x)`: saves its result.
    #[must_use]
    pub fn sigmoid(&self, x: &Tensor) -> Tensor {
        self.saving_its_result(x, ["sigmoid", "grad of sigmoid"])
    }

    fn saving_its_result(&self, x: &Tensor, [op, grad]: [&'static str; 2]) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let out = self.elementwise(&[x], x.dtype(), op);
        let s = r.save(&out);
        r.finish(out, move |t, g| {
            let (Some(g), Some(y)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.elementwise(&[g, &y], g.dtype(), grad))])
        })
    }

    /// `x.clamp(…)` from above or on both sides: keeps its input. Backward chooses the gradient or zero.
    #[must_use]
    pub fn clamp(&self, x: &Tensor, both: bool) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let s = r.save(x);
        let out = self.elementwise(&[x], x.dtype(), "clamp");
        r.finish(out, move |t, g| {
            let (Some(g), Some(x)) = (first(g), s.unpack(t)) else { return Grads::default() };
            let zero = t.scalar(g.dtype(), "zero");
            let within = || t.elementwise(&[&x], Dtype::Bool, "within the clamp");
            let mask = within();
            let other = both.then(within);
            let grad = t.elementwise(&[&mask, g], g.dtype(), "grad of clamp");
            drop((other, mask, zero));
            grads_of([Some(grad)])
        })
    }

    /// `x.max(-1, keepdim=True).values`: keeps the places. Backward writes the gradient into zeros.
    #[must_use]
    pub fn max_last(&self, x: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let whole = *x.shape();
        let rows = whole.narrowed(whole.rank() - 1, Dim::plain(1)).contiguous();
        let out = self.temp(rows, x.dtype(), "largest of a row");
        let places = self.temp(rows, Dtype::I64, "place of the largest");
        let saved = r.save(&places);
        drop(places);
        r.finish(out, move |t, g| {
            let (Some(g), Some(_places)) = (first(g), saved.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.temp(whole.contiguous(), g.dtype(), "grad of the largest"))])
        })
    }

    /// `x.masked_fill(mask, c)` for a Python number; the mask is kept.
    #[must_use]
    pub fn masked_fill(&self, x: &Tensor, mask: &Tensor) -> Tensor {
        let r = Recorder::begin(self, &[x]);
        let s = r.save(mask);
        let out = self.temp(x.shape().like(), x.dtype(), "masked copy");
        r.finish(out, move |t, g| {
            let (Some(g), Some(_mask)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.temp(g.shape().like(), g.dtype(), "grad of masked copy"))])
        })
    }

    /// `dropout(x, p)` with p > 0 in training (`native_dropout`): a mask of one byte per element, and the result.
    #[must_use]
    pub fn dropout(&self, x: &Tensor, p: f64) -> Tensor {
        if self.dropped(p) <= 0.0 {
            return x.clone();
        }
        let r = Recorder::begin(self, &[x]);
        let mask = self.temp(x.shape().like(), Dtype::Bool, "dropout mask");
        let out = self.temp(x.shape().like(), x.dtype(), "dropout");
        let s = r.save(&mask);
        drop(mask);
        r.finish(out, move |t, g| {
            let (Some(g), Some(mask)) = (first(g), s.unpack(t)) else { return Grads::default() };
            grads_of([Some(t.elementwise(&[g, &mask], g.dtype(), "grad of dropout"))])
        })
    }

    /// The sum of `x` over the dimensions that `sizes` broadcasts, outside the graph (`at::sum_to`).
    pub(crate) fn sum_to(&self, x: &Tensor, sizes: &Shape) -> Tensor {
        let lead = x.shape().rank() - sizes.rank();
        let same = x.shape().dims()[lead..].iter().zip(sizes.dims()).all(|(a, b)| a.n == b.n);
        if same && x.shape().dims()[..lead].iter().all(|d| d.n == 1) {
            return if lead == 0 { x.clone() } else { x.alias(sizes.contiguous()) };
        }
        // Summed with its dimensions kept, then seen without the leading ones.
        let sum = self.sum_over(x, sizes);
        if lead == 0 { sum } else { sum.alias(*sum.shape()) }
    }
}
