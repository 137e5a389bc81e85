//! Weights kept in 4 or 8 bits (bitsandbytes).

use serde::{Deserialize, Serialize};

use crate::recipe::FloatName;

/// How the linear layers' weights are kept, as `BitsAndBytesConfig` of transformers (bitsandbytes 0.50). They are frozen:
/// adapters train beside them. The output head, and whatever else the quantiser leaves alone, stays as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Quantization {
    /// The code.
    pub kind: QuantKind,
    /// Whether the 4-bit code's scale factors are quantised themselves (`bnb_4bit_use_double_quant`).
    #[serde(default)]
    pub double_quant: bool,
    /// The type in which products with 4-bit weights run. `None`: BF16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_dtype: Option<FloatName>,
    /// Whether everything that is not quantised is taken to FP32 (`prepare_model_for_kbit_training`).
    #[serde(default = "yes")]
    pub prepare: bool,
}

/// A code for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum QuantKind {
    /// 4 bits, quantiles of a normal distribution.
    Nf4,
    /// 4 bits, floating.
    Fp4,
    /// 8 bits with a scale per row (`LLM.int8()`).
    Int8,
}

const fn yes() -> bool {
    true
}

/// How Transformer Engine scales what its FP8 products are of (its recipes of these names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Float8Scaling {
    /// By the largest values of earlier steps (`DelayedScaling`), accelerate's default.
    Delayed,
    /// By the largest value at hand (`Float8CurrentScaling`).
    Current,
    /// A scale for every 32 elements (`MXFP8BlockScaling`).
    Mxfp8,
    /// Weights that are FP8 themselves (`fp8_model_init`): not modelled.
    PrimaryWeights,
}

/// How the model gets onto the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Built there.
    #[default]
    Init,
    /// `from_pretrained` of a safetensors checkpoint of the dtype that is loaded.
    Pretrained,
}
