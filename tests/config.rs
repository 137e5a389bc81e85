//! Configs that are wrong: one message a field, all at once, nothing crashes, nothing is guessed.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use vram_budget::model::read_config;
use vram_budget::text::{Locale, issue_line};

fn complaints(config: &Value) -> String {
    let Value::Object(config) = config else { panic!("a config is an object") };
    let text = Locale::En.text();
    match read_config(config) {
        Ok(read) => format!("reads as {}\n", read.model.family()),
        Err(issues) => issues.iter().fold(String::new(), |mut all, issue| {
            // The list of known families grows; that it is given is what matters here.
            let line = issue_line(text, issue);
            let line = line
                .split_once("known architectures: Llama")
                .map_or(line.clone(), |(said, _)| format!("{said}known …"));
            writeln!(all, "{line}").unwrap();
            all
        }),
    }
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32
    })
}

#[test]
fn wrong_configs_are_refused_field_by_field() {
    let change = |changes: Value| {
        let Value::Object(mut config) = llama() else { unreachable!() };
        let Value::Object(changes) = changes else { unreachable!() };
        for (key, value) in changes {
            if value == json!("(absent)") {
                config.remove(&key);
            } else {
                config.insert(key, value);
            }
        }
        Value::Object(config)
    };
    let cases = [
        ("as it should be", llama()),
        ("missing", change(json!({"hidden_size": "(absent)", "vocab_size": null}))),
        ("negative", change(json!({"hidden_size": -4096, "num_hidden_layers": -1}))),
        ("huge", change(json!({"num_hidden_layers": 1_000_000_000, "vocab_size": 1e30, "hidden_size": u64::MAX}))),
        (
            "not whole",
            change(json!({"num_attention_heads": 7.5, "intermediate_size": "11008", "num_key_value_heads": true})),
        ),
        ("zero", change(json!({"num_hidden_layers": 0, "num_attention_heads": 0}))),
        ("heads do not divide", change(json!({"num_attention_heads": 31, "num_key_value_heads": 3}))),
        ("unknown architecture", json!({"model_type": "made_up", "architectures": ["MadeUpForCausalLM"]})),
        ("diffusion", json!({"_class_name": "UNet2DConditionModel", "sample_size": 64})),
        ("no model at all", json!({"hello": "world"})),
        ("quantised", change(json!({"quantization_config": {"load_in_4bit": true}}))),
        ("another class", change(json!({"architectures": ["LlamaForQuestionAnswering"]}))),
        ("a text part", json!({"model_type": "llava", "text_config": llama()})),
        ("a broken text part", json!({"model_type": "llava", "text_config": change(json!({"hidden_size": 0}))})),
    ];
    let mut all = String::new();
    for (name, config) in cases {
        writeln!(all, "{name}\n{}", complaints(&config)).unwrap();
    }
    insta::assert_snapshot!(all);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| serde_json::Number::from_f64(f).map_or(Value::Null, Value::Number)),
        "\\PC{0,60}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from))
}

proptest! {
    /// Whatever stands in a config's fields, reading it ends in a model or in complaints, and a model that reads can list
    /// its parameters.
    #[test]
    fn no_config_crashes_the_reader(values in prop::collection::vec(any_json(), 8), gpt in any::<bool>()) {
        let names = if gpt {
            ["n_embd", "n_layer", "n_head", "vocab_size", "n_positions", "n_inner", "attn_pdrop", "activation_function"]
        } else {
            ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "num_key_value_heads", "head_dim",
             "intermediate_size", "hidden_act"]
        };
        let mut config: Map<String, Value> = names.into_iter().map(str::to_owned).zip(values).collect();
        config.insert("model_type".into(), json!(if gpt { "gpt2" } else { "llama" }));
        if let Ok(read) = read_config(&config) {
            prop_assert!(!read.model.parameters().is_empty());
        }
    }
}
