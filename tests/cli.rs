//! The command as a person and a pipe meet it: streams, exit codes, documents.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

struct Done {
    code: i32,
    out: String,
    talk: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vram-budget"));
    command.args(args).env_remove("CLICOLOR_FORCE").env_remove("NO_COLOR");
    command
}

fn run(args: &[&str]) -> Done {
    fed(args, "")
}

fn fed(args: &[&str], input: &str) -> Done {
    let mut child = command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that does not read its input closes it: no failure of the test.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let done = child.wait_with_output().unwrap();
    Done {
        code: done.status.code().expect("no signal"),
        out: String::from_utf8(done.stdout).unwrap(),
        talk: String::from_utf8(done.stderr).unwrap(),
    }
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    let done = run(args);
    assert_eq!((done.code, done.talk.as_str()), (0, ""), "{args:?}");
    done.out
}

#[track_caller]
fn json(args: &[&str]) -> Value {
    serde_json::from_str(&ok(args)).unwrap()
}

/// A rejected input: exit code 4, nothing on stdout, the reasons on stderr.
#[track_caller]
fn rejected(done: &Done) -> &str {
    assert_eq!((done.code, done.out.as_str()), (4, ""), "{}", done.talk);
    &done.talk
}

/// A file of this test alone.
fn file(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn help_begins_with_examples_and_is_a_document() {
    let help = ok(&["--help"]);
    assert!(help.starts_with("Examples:\n  vram-budget estimate"), "{help}");
    for subcommand in ["estimate", "fragmentation", "probe", "snapshot", "validate", "schema"] {
        assert!(help.contains(subcommand));
        assert!(!ok(&[subcommand, "--help"]).is_empty());
    }
    assert!(ok(&["--version"]).starts_with("vram-budget "));
}

#[test]
fn wrong_usage_is_exit_code_2_and_says_so_on_stderr() {
    for args in [
        &[][..],
        &["estimate"],
        &["estimate", "gpt2", "--precision", "fp8"],
        &["estimate", "gpt2", "--gpu-memory", "many"],
        &["estimate", "gpt2", "--micro-batch", "-1"],
        &["estimate", "gpt2", "--gpu", "T4", "--gpu-memory", "16 GiB"],
        &["estimate", "gpt2", "--config", "config.json"],
        &["estimate", "gpt2", "--unit", "GiB"],
        &["validate"],
        &["schema", "page"],
        &["frobnicate"],
    ] {
        let done = run(args);
        assert_eq!((done.code, done.out.as_str()), (2, ""), "{args:?}");
        assert!(!done.talk.is_empty(), "{args:?}");
    }
}

const JOB: [&str; 10] = [
    "estimate",
    "llama-3.2-1b",
    "--gpu",
    "RTX 4090",
    "--precision",
    "pure_bf16",
    "--in-use",
    "0 B",
    "--seq-len",
    "1024",
];

#[test]
fn an_estimate_begins_with_the_verdict_and_has_no_colour_in_a_pipe() {
    let text = ok(&JOB);
    assert!(text.starts_with("Fits: needs "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    for word in ["Weights", "Optimizer step", "Allocated peak", "Rigid cost", "Throughput", "llama-3.2-1b on RTX 4090"]
    {
        assert!(text.contains(word), "{word}:\n{text}");
    }
}

#[test]
fn colour_is_forced_and_forbidden_by_the_environment() {
    let with = |name: &str| {
        let out = command(&JOB).env(name, "1").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    assert!(with("CLICOLOR_FORCE").contains("\u{1b}[1;32m"));
    assert!(!with("NO_COLOR").contains('\u{1b}'));
}

#[test]
fn older_versions_follow_their_rules_and_say_which() {
    let text = ok(&["estimate", "gpt2", "--transformers", "4.48", "-s", "512"]);
    assert!(text.contains("before transformers 4.49: the loss shifts the logits, as a copy"), "{text}");
    let today = ok(&["estimate", "gpt2", "-s", "512"]);
    assert!(!today.contains("before transformers"), "{today}");
}

#[test]
fn an_unknown_precision_lists_what_each_recipe_would_need() {
    let text = ok(&["estimate", "qwen3-0.6b", "--precision", "unknown", "--gpu", "RTX 4060 8GB"]);
    assert!(text.starts_with("Cannot tell: needs up to "), "{text}");
    for name in ["amp_bf16", "pure_bf16", "fp32", "amp_fp16", "bf16_master"] {
        assert!(text.lines().any(|l| l.trim().starts_with(&format!("{name} ")) && l.contains("allocates")), "{name}");
    }
    assert!(!text.contains("rule_of_thumb"), "no framework runs it");
}

#[test]
fn the_json_document_has_tiers_parts_and_provenance_and_its_sums_agree() {
    let document = json(&[&JOB[..], &["--json"]].concat());
    assert_eq!(document["verdict"], "fits");
    let peak = |tier: &str| document["tiers"][tier]["peak_bytes"].as_u64().unwrap();
    assert!(peak("requested") <= peak("allocated"));
    assert!(peak("allocated") <= peak("reserved"));
    assert_eq!(peak("process"), peak("reserved") + (500 << 20), "the context of an Ada card");
    for tier in ["requested", "allocated", "reserved", "process"] {
        let provenance = &document["tiers"][tier]["provenance"];
        assert!(provenance["kind"].is_string() && provenance["source"].is_string(), "{tier}");
    }
    let parts = document["parts"].as_object().unwrap();
    assert_eq!(parts.len(), 5);
    let binding = document["binding"].as_str().unwrap();
    let total = |instant: &str| parts.values().map(|p| p[instant].as_u64().unwrap()).sum::<u64>();
    for instant in ["forward", "loss", "backward", "step"] {
        assert!(total(instant) <= total(binding), "{instant}");
    }
    // Counted with transformers' own class.
    assert_eq!(document["parameters"], 1_235_814_400);
    assert_eq!(document["readings"]["params"], 2 * 1_235_814_400_u64);
    assert!(parts["weights"]["step"].as_u64().unwrap() >= 2 * 1_235_814_400);
    let lines = document["bill"]["columns"][0]["cells"][0]["lines"].as_array().unwrap();
    assert!(lines.iter().all(|l| l["formula"].is_string() && l["provenance"]["kind"].is_string()));
}

#[test]
fn the_plan_in_the_document_gives_the_same_document() {
    let first = ok(&[&JOB[..], &["--json"]].concat());
    let document: Value = serde_json::from_str(&first).unwrap();
    let plan = file("plan.json", &document["plan"].to_string());
    let plan = plan.to_str().unwrap();
    assert_eq!(ok(&["estimate", "--plan", plan, "--json"]), first);
    let longer = json(&["estimate", "--plan", plan, "--seq-len", "2048", "--json"]);
    assert_eq!(longer["plan"]["recipe"]["seq_len"], 2048, "flags change the plan");
    assert_eq!(longer["plan"]["recipe"]["precision"], "pure_bf16");
}

#[test]
fn a_config_is_read_from_stdin() {
    let config = r#"{"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100}"#;
    let done = fed(&["estimate", "--config", "-"], config);
    assert_eq!(done.code, 0, "{}", done.talk);
    assert!(done.out.starts_with("Cannot tell: needs "), "no GPU is given: {}", done.out);
}

#[test]
fn what_cannot_be_estimated_is_rejected_with_every_reason() {
    let config = r#"{"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3, "num_hidden_layers": 0,
        "vocab_size": -5, "intermediate_size": 1.5}"#;
    let cases = [
        run(&["estimate", "lama-3.1-8b", "--gpu", "RTX 9999"]),
        run(&["estimate", "gpt-j-6b"]),
        run(&["estimate", "gpt2", "--micro-batch", "0"]),
        run(&["estimate", "gpt2", "--margin-low", "2"]),
        fed(&["estimate", "--config", "-"], config),
        fed(&["estimate", "--config", "-"], r#"{"model_type": "mamba"}"#),
        fed(&["estimate", "--config", "-"], "[]"),
        fed(&["estimate", "--config", "-"], "{\"a\": "),
        fed(&["estimate", "--plan", "-"], r#"{"version": 1, "model": {"preset": "gpt2"}, "recipe": {"sequence": 9}}"#),
        fed(&["estimate", "--plan", "-"], r#"{"version": 7, "model": {"preset": "gpt2"}}"#),
        fed(&["estimate", "gpt2", "--measured", "-"], "lorem ipsum"),
        fed(&["estimate", "gpt2", "--measured", "-"], r#"{"base": 1.5, "forward_delta": 1, "peak": 9}"#),
        fed(&["validate", "-"], "{\"id\": 3}\n"),
        fed(&["validate", "-"], "lorem ipsum\n"),
    ];
    // The lists of what is known grow with every family and field.
    let told: Vec<String> = cases
        .iter()
        .map(rejected)
        .flat_map(str::lines)
        .map(|line| match line.split_once("known architectures: ").or_else(|| line.split_once("expected one of ")) {
            Some((said, _)) => format!("{said}…"),
            None => line.to_owned(),
        })
        .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn files_that_are_missing_folders_or_too_large_are_told_apart() {
    let missing = run(&["estimate", "--plan", "/nonexistent/plan.json"]);
    assert_eq!((missing.code, missing.out.as_str()), (1, ""));
    assert!(missing.talk.contains("/nonexistent/plan.json"), "{}", missing.talk);
    assert!(rejected(&run(&["validate", env!("CARGO_TARGET_TMPDIR")])).contains("folder"));
    let large = |name: &str, bytes: u64| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Sparse: it takes no room.
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    assert!(rejected(&run(&["estimate", "--config", &large("config", (32 << 20) + 1)])).contains("32 MiB"));
    assert!(rejected(&run(&["validate", &large("cases", (2 << 30) + 1)])).contains("2 GiB"));
    assert!(rejected(&run(&["validate", &large("line", 40 << 20)])).contains("line 1 is larger than 32 MiB"));
}

#[test]
fn a_reader_that_closes_the_pipe_has_what_it_wanted() {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/training-steps/cases.jsonl");
    let mut child =
        command(&["validate", "--json", cases]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!((done.status.code(), String::from_utf8(done.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn a_measurement_is_put_beside_the_prediction() {
    let script = r#"{"base": 2600000000, "forward_delta": 1900000000, "backward_delta": 700000000,
        "step_delta": 4900000000, "peak": 10400000000}"#;
    let measured = file("script.json", script);
    let measured = measured.to_str().unwrap();
    let text = ok(&[&JOB[..], &["--measured", measured]].concat());
    assert!(text.contains("first.peak"), "{text}");
    let document = json(&[&JOB[..], &["--measured", measured, "--json"]].concat());
    let rows = document["measured"].as_array().unwrap();
    assert_eq!(rows.len(), 5);
    for row in rows {
        let of = |key: &str| row[key].as_i64().unwrap();
        assert_eq!(of("difference"), of("predicted") - of("measured"), "{row}");
    }
    let mega = r#"{"base": 2600, "forward_delta": 1900, "backward_delta": 700, "step_delta": 4900, "peak": 10400}"#;
    let mega = file("mega.json", mega);
    let asked = run(&[&JOB[..], &["--measured", mega.to_str().unwrap()]].concat());
    assert!(rejected(&asked).contains("--unit MiB|MB"), "{}", asked.talk);
}

/// A case of the reference file, the same with a recipe and with a model that nothing here models, and an out-of-memory
/// run.
fn some_cases() -> Vec<String> {
    let all = include_str!("data/training-steps/cases.jsonl");
    let find =
        |what: &dyn Fn(&Value) -> bool| all.lines().find(|line| what(&serde_json::from_str(line).unwrap())).unwrap();
    let llama = |v: &Value| v["case"]["model"]["model_type"] == "llama";
    let full = find(&|v| llama(v) && v["case"]["recipe"]["lora"].is_null() && v["result"]["oom"].is_null());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut case: Value = serde_json::from_str(full).unwrap();
        change(&mut case);
        case.to_string()
    };
    vec![
        full.to_owned(),
        changed(&|v| v["case"]["recipe"]["made_up"] = serde_json::json!({ "r": 8 })),
        find(&|v| llama(v) && v["result"]["oom"].is_object()).to_owned(),
        changed(&|v| {
            v["case"]["model"] = serde_json::json!({ "model_type": "made_up", "architectures": ["MadeUpForCausalLM"] });
        }),
    ]
}

#[test]
fn cases_are_predicted_by_name_and_refused_by_reason() {
    let cases = some_cases();
    let path = file("cases.jsonl", &cases.join("\n"));
    let path = path.to_str().unwrap();
    let lines: Vec<Value> =
        ok(&["validate", "--json", path]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    let source: Value = serde_json::from_str(&cases[0]).unwrap();
    let [full, recipe, oom, model] = &lines[..] else { panic!() };
    assert_eq!((&full["id"], &full["family"], &full["refused"]), (&source["id"], &"llama".into(), &Value::Null));
    for name in ["max_allocated", "max_reserved", "base", "params", "optimizer_state"] {
        let pair = &full["readings"][name];
        assert_eq!(pair["measured"], source["result"][name], "{name}");
        assert!(pair["predicted"].is_i64(), "{name}: {pair}");
    }
    assert_eq!(full["readings"]["params"]["predicted"], source["result"]["params"]);
    for name in ["forward_peak", "backward_peak", "step_peak", "after_step", "after_zero_grad", "grads", "inputs"] {
        for step in ["first", "steady"] {
            let pair = &full["readings"][format!("{step}.{name}")];
            assert_eq!(pair["measured"], source["result"][step][name], "{step}.{name}");
            assert!(pair["predicted"].is_i64(), "{step}.{name}");
        }
    }
    assert!(recipe["refused"].as_str().unwrap().contains("made_up"), "{recipe}");
    assert_eq!(recipe["readings"], serde_json::json!({}));
    assert_eq!(oom["out_of_memory"], true);
    assert!(oom["readings"]["max_allocated"]["measured"].is_null(), "what an OOM run reached is no peak");
    assert!(model["refused"].as_str().unwrap().contains("MadeUpForCausalLM"), "{model}");

    let table = ok(&["validate", path]);
    assert!(table.starts_with("4 cases, 2 predicted, 2 refused, 1 ran out of memory"), "{table}");
    assert!(table.lines().any(|l| l.starts_with("llama") && l.contains("max_allocated")), "{table}");
}

/// The bars of what is said about cards around the smallest on which a step was seen to complete.
#[test]
fn verdicts_stand_against_what_was_measured() {
    let boundaries = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/training-steps/min-capacity.jsonl");
    let known: Vec<Value> = include_str!("data/training-steps/min-capacity.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].clone();
    let ids: Vec<&Value> = known.iter().map(|boundary| &boundary["id"]).collect();
    let all = include_str!("data/training-steps/cases.jsonl");
    let cases: Vec<&str> = all.lines().filter(|line| ids.contains(&&id(line))).collect();
    let path = file("boundary-cases.jsonl", &cases.join("\n"));
    let text = ok(&["validate", "--json", "--verdicts", boundaries, path.to_str().unwrap()]);
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let of = |card: &str, answer: &str| last["verdicts"][card][answer].as_u64().unwrap();
    let sum = |cards: &[&str], answers: &[&str]| -> u64 {
        cards.iter().flat_map(|card| answers.iter().map(move |answer| of(card, answer))).sum()
    };
    assert_eq!(sum(&["1.5"], &["fits", "tight", "cannot_tell", "does_not_fit"]), 110);
    assert_eq!(sum(&["0.7", "0.85", "0.95"], &["fits"]), 0, "{last}");
    assert!(sum(&["1.05", "1.2", "1.5"], &["does_not_fit"]) * 100 <= 3 * 110 * 2, "{last}");
    assert!(sum(&["0.7", "0.85", "1.2", "1.5"], &["tight", "cannot_tell"]) * 100 <= 4 * 110 * 5, "{last}");
    let strange = file("strange.jsonl", r#"{"id": "no such case", "completes_at_mib": 100}"#);
    let done = fed(&["validate", "--verdicts", strange.to_str().unwrap(), "-"], cases[0]);
    assert_eq!(done.code, 4);
    assert!(done.talk.contains("no case is called no such case"), "{}", done.talk);
}

#[test]
fn plans_are_searched_around_a_job() {
    const JOB: [&str; 10] =
        ["plan", "gpt2", "--gpu", "T4", "--precision", "fp32", "--seq-len", "128", "--global-batch", "8"];
    const SPACE: [&str; 6] =
        ["--try-checkpointing", "none,full", "--try-optimizer", "adamw,sgd", "--try-micro-batch", "2,3,8"];
    let found = json(&[&JOB[..], &SPACE, &["--json", "--try-gpu", "RTX 4090"]].concat());
    // 3 does not come out even: two micro-batches, two ways to checkpoint, three implementations of each, two GPUs.
    assert_eq!(found["plans"], 2 * 2 * 6 * 2);
    assert!(found["replayed"].as_u64().unwrap() < 48, "{}", found["replayed"]);
    assert_eq!(found["smallest_gpu"], found["machines"][0]["gpu"]);
    let best = &found["machines"][0]["fastest_that_fits"];
    assert_eq!(best["verdict"], "fits");
    let recipe = &best["plan"]["recipe"];
    assert_eq!(recipe["micro_batch"].as_u64().unwrap() * recipe["grad_accum"].as_u64().unwrap(), 8);
    let text = ok(&[&JOB[..], &SPACE].concat());
    assert!(
        text.contains("fastest that fits") && text.contains("tokens/s") && text.contains("micro-batch 8 × 1"),
        "{text}"
    );
    assert!(rejected(&run(&["plan", "gpt2", "--try-gpu", "RTX 9999"])).contains("machine.gpu"));
}

#[test]
fn measurement_documents_with_a_plan_are_validated_too() {
    let document = r#"{
      "format": "vram-budget-measurement", "version": 1, "id": "mine",
      "plan": {"version": 1, "model": {"preset": "gpt2"}},
      "readings": [{"name": "params", "tier": "allocated", "bytes": 497759232}]
    }"#;
    let done = fed(&["validate", "--json", "-"], document);
    assert_eq!(done.code, 0, "{}", done.talk);
    let line: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&line["id"], &line["family"]), (&"mine".into(), &"gpt2".into()));
    // GPT-2's 124,439,808 parameters in FP32.
    assert_eq!(line["readings"]["params"], serde_json::json!({ "predicted": 497_759_232, "measured": 497_759_232 }));
    let one_line: String = document.split_whitespace().collect();
    assert_eq!(fed(&["validate", "--json", "-"], &one_line).out, done.out);
    let no_plan = document.replace(r#""plan": {"version": 1, "model": {"preset": "gpt2"}},"#, "");
    assert!(rejected(&fed(&["validate", "-"], &no_plan)).contains("no plan"));
}

#[test]
fn events_print_one_tensor_a_line() {
    let text = ok(&["estimate", "gpt2", "--events"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 500, "{}", lines.len());
    // 50,257 × 768 × 4 bytes: the embedding comes first.
    assert!(lines.iter().take(3).any(|l| l.contains("154389504")), "{}", lines[..3].join("\n"));
}

#[test]
fn schemas_are_json_and_describe_the_documents() {
    let both = json(&["schema"]);
    for (document, field) in [("plan", "recipe"), ("measurement", "readings")] {
        assert!(both[document]["properties"][field].is_object(), "{document}");
        assert_eq!(json(&["schema", document]), both[document]);
    }
}

/// With a driver, a document; without one, exit code 3 and what was tried.
#[test]
fn a_probe_finds_gpus_or_says_what_it_tried() {
    let done = run(&["probe"]);
    match done.code {
        0 => {
            let document: Value = serde_json::from_str(&done.out).unwrap();
            assert_eq!(document["format"], "vram-budget-measurement");
            assert!(!document["gpus"].as_array().unwrap().is_empty());
        }
        code => {
            assert_eq!((code, done.out.as_str()), (3, ""));
            assert!(done.talk.contains("libnvidia-ml.so.1"), "{}", done.talk);
        }
    }
}

#[test]
fn a_run_over_many_lengths_is_replayed_under_every_setting() {
    const RUN: [&str; 8] =
        ["fragmentation", "gpt2", "--seq-len", "1024", "--lengths", "100,900,300,40,2000", "--steps", "6"];
    let with = |more: &[&str]| ok(&[&RUN[..], more].concat());
    let found: Value = serde_json::from_str(&with(&["--json", "--gpu-memory", "8 GiB", "-b", "2"])).unwrap();
    // Pairs of the list, from its beginning again, none longer than a sequence may be.
    assert_eq!(found["padded_lengths"], serde_json::json!([[900], [300], [1024], [900], [1024], [900]]));
    let settings = found["settings"].as_array().unwrap();
    let of = |name: &str| settings.iter().find(|s| s["setting"] == name).unwrap();
    assert_eq!(settings.len(), 8);
    for setting in settings {
        let steps = setting["steps"].as_array().unwrap();
        assert_eq!(steps.len(), 6, "{setting}");
        assert_eq!(steps[0]["allocated"], steps[5]["allocated"], "{}", setting["setting"]);
        assert_eq!(setting["on_cards"].as_array().unwrap().len(), 1);
    }
    let reserved = |name: &str| of(name)["peak_reserved"].as_u64().unwrap();
    assert!(reserved("expandable_segments:True") < reserved("as planned"));
    let text = with(&["--batching", "packed", "--gpu-memory", "1 GiB"]);
    assert!(text.contains("padded to 1024 to 1024 tokens, 1 different lengths"), "{text}");
    assert!(text.contains("runs out of memory"), "{text}");
}

#[test]
fn wrong_lengths_are_rejected_by_field() {
    let of = |more: &[&str]| run(&[&["fragmentation", "gpt2"][..], more].concat());
    assert!(rejected(&of(&["--lengths", "uniform=9..3"])).contains("recipe.lengths.of.uniform.min"));
    assert!(rejected(&of(&["--lengths", "log-normal=512,9"])).contains("recipe.lengths.of.log_normal.sigma"));
    assert!(rejected(&of(&["--lengths", "fixed", "--steps", "0"])).contains("recipe.lengths.steps"));
    assert!(rejected(&of(&["--lengths", "fixed", "--seq-len", "5000"])).contains("seq_len"));
    for text in ["uniform=1", "log-normal=1", "3,x", "uniform=a..b"] {
        assert_eq!(of(&["--lengths", text]).code, 2, "{text}");
    }
}

#[test]
fn recordings_are_read_replayed_and_refused() {
    let recording = |name: &str| format!("{}/tests/data/snapshots/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = recording("s08-llama-oom.pickle.gz");
    let found = json(&["snapshot", &file, "--json", "--alloc-conf", "expandable_segments:True"]);
    assert_eq!(found["reserved"], 4_517_265_408_u64);
    assert_eq!(found["replayed"]["as_recorded"]["reserved"], found["reserved"]);
    assert_eq!(found["replayed"]["as_recorded"]["recorded_failure_fails"], true);
    assert_eq!(found["replayed"]["others"][0]["alloc_conf"], "expandable_segments:True");
    let text = ok(&["snapshot", &file, "--total", "8 GiB"]);
    assert!(text.contains("expandable_segments:True") && text.contains("does not run out of memory there"), "{text}");
    let text = ok(&["snapshot", &recording("s04-llama-all-alloc-frames.pickle.gz")]);
    assert!(text.contains("Optimizer states") && text.contains("modeling_llama.py:343 __init__"), "{text}");
    // Beside a plan's peak, part by part.
    let plan = r#"{"version": 1, "model": {"preset": "gpt2"}, "recipe": {}}"#;
    let beside = fed(&["snapshot", &file, "--plan", "-"], plan);
    assert_eq!(beside.code, 0, "{}", beside.talk);
    let rows = beside.out.split("Beside the predicted peak").nth(1).unwrap();
    assert!(rows.contains("recorded") && rows.contains("Weights") && rows.contains("not told by its stack"), "{rows}");
    let beside = fed(&["snapshot", &file, "--json", "--plan", "-"], plan);
    let beside: Value = serde_json::from_str(&beside.out).unwrap();
    let parts = beside["predicted_peak"]["parts"].as_object().unwrap();
    assert_eq!(
        parts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(),
        beside["predicted_peak"]["requested"].as_u64().unwrap()
    );
    assert!(ok(&["snapshot", &recording("snap-08-as-json.json")]).contains("650 MiB  reserved"));
    let text = ok(&["snapshot", &recording("snap-04-pytorch-1.8-list-proto3.pickle.gz")]);
    assert!(text.contains("not replayed: nothing was recorded"), "{text}");
    let done = run(&["snapshot", &recording("snap-06-malicious-global.pickle.gz")]);
    assert!(rejected(&done).contains("STACK_GLOBAL at byte 64: this opcode runs code"), "{}", done.talk);
    assert!(rejected(&run(&["snapshot", &recording("snap-07-truncated.pickle.gz")])).contains("cut off"));
    assert!(rejected(&run(&["snapshot", &file, "--device", "3"])).contains("nothing is recorded of device 3"));
    assert!(rejected(&run(&["snapshot", &file, "--alloc-conf", "max_split_size_mb:1"])).contains("max_split_size_mb"));
}

#[test]
fn the_phase_that_binds_is_the_one_that_is_named() {
    let plan = |more: &[&'static str]| {
        let liger =
            ["estimate", "qwen2.5-0.5b", "--gpu", "RTX 4090 24GB", "--precision", "pure_bf16", "--micro-batch", "2"];
        let lora =
            ["--seq-len", "1024", "--checkpointing", "full", "--lora-rank", "8", "--lora-targets", "q_proj", "--liger"];
        liger.into_iter().chain(lora).chain(more.iter().copied()).collect::<Vec<_>>()
    };
    // Liger's fused loss runs in training alone: the evaluation makes the logits.
    let text = ok(&plan(&["--eval-after"]));
    assert!(text.lines().nth(1).unwrap().ends_with("The peak is in the evaluation."), "{text}");
    let total = text.lines().find(|line| line.starts_with("Total")).unwrap();
    assert!(!total.contains('*'), "no instant of the step binds: {total}");
    let marked: Vec<&str> = text.lines().filter(|line| line.contains('*')).collect();
    assert!(matches!(marked[..], [line] if line.starts_with("Evaluation")), "{marked:?}");
    assert!(text.contains("with less it fails in the evaluation\n"), "{text}");
    let document = json(&plan(&["--eval-after", "--json"]));
    assert_eq!(document["binding"], "evaluation");
    assert_eq!(document["phases"]["binding"], "evaluation");
    let allocated = |at: usize| document["phases"]["list"][at]["allocated_bytes"].as_u64().unwrap();
    assert_eq!(document["numbers"]["allocated"].as_u64(), Some(allocated(1)));
    assert!(allocated(1) > allocated(0));
    // Without it, a card that the evaluation does not leave room on is enough.
    let without = json(&plan(&["--json"]));
    assert_eq!(without["binding"], without["bill"]["binding"]);
    assert_eq!(without["numbers"]["allocated"].as_u64(), Some(allocated(0)));
    let small = ["--gpu-memory", "3.5 GiB", "--compute-capability", "8.9", "--context", "0.5 GiB", "--json"];
    let on_small = |more: &[&'static str]| {
        let all = plan(&[]).into_iter().filter(|word| !["--gpu", "RTX 4090 24GB"].contains(word));
        json(&all.chain(small).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    assert_eq!(on_small(&[])["verdict"], "fits");
    assert_eq!(on_small(&["--eval-after"])["verdict"], "does_not_fit");
}

#[test]
fn the_experts_that_a_quantiser_leaves_are_named() {
    let plan = |more: &[&'static str]| {
        let nf4 =
            ["estimate", "mixtral-8x7b", "--gpu", "A100 SXM4 80GB", "--precision", "amp_bf16", "--quantization", "nf4"];
        let rest =
            ["--lora-rank", "8", "--lora-targets", "q_proj", "--seq-len", "64", "--checkpointing", "full", "--json"];
        json(&nf4.into_iter().chain(rest).chain(more.iter().copied()).collect::<Vec<_>>())
    };
    let experts = |document: &Value| {
        let all = document["caveats"].as_array().unwrap();
        all.iter().find_map(|caveat| caveat.get("experts_not_quantized").cloned()).unwrap()
    };
    // Eight experts of three matrices of 4096 × 14336 in each of 32 layers.
    let elements = 8 * 3 * 4096 * 14336 * 32_u64;
    let (prepared, left) = (plan(&[]), plan(&["--no-prepare"]));
    assert_eq!(experts(&prepared), serde_json::json!({ "bytes": elements * 4, "bits": 32, "prepared": true }));
    assert_eq!(experts(&left), serde_json::json!({ "bytes": elements * 2, "bits": 16, "prepared": false }));
    // No 80 GB card holds what is often taken for 4 bits.
    assert_eq!((&prepared["verdict"], &left["verdict"]), (&"does_not_fit".into(), &"does_not_fit".into()));
}

#[test]
fn nodes_and_links_are_flags_and_stand_in_the_plan() {
    let plan = |more: &[&'static str]| {
        let job = ["estimate", "gpt2", "--gpu", "H100 SXM5 80GB", "--precision", "pure_bf16", "--seq-len", "128"];
        let layout = ["--parallel", "zero3", "--world-size", "8", "--offload-optimizer", "cpu"];
        job.into_iter().chain(layout).chain(more.iter().copied()).collect::<Vec<_>>()
    };
    const CLUSTER: [&str; 6] = ["--gpus-per-node", "4", "--network-gbps", "12.5", "--link-gbps", "300"];
    let host = |text: String| text.lines().find(|line| line.starts_with("Host of a node")).unwrap().to_owned();
    assert!(host(ok(&plan(&[]))).contains("  8 ranks, each "));
    assert!(host(ok(&plan(&CLUSTER))).contains("  4 ranks, each "));
    let plain = json(&plan(&["--json"]));
    assert!(plain["plan"]["parallel"].get("gpus_per_node").is_none(), "what is not said is not written");
    let said = json(&[&plan(&CLUSTER)[..], &["--json"]].concat());
    let parallel = &said["plan"]["parallel"];
    let of = ["gpus_per_node", "network_gbps", "link_gbps"].map(|name| parallel[name].as_f64());
    assert_eq!(of, [Some(4.0), Some(12.5), Some(300.0)]);
    let node = |document: &Value| document["transfers"]["host_node_in_step"].as_u64().unwrap();
    assert_eq!(node(&plain), 2 * node(&said));
    let kept = file("cluster.json", &said["plan"].to_string());
    assert_eq!(json(&["estimate", "--plan", kept.to_str().unwrap(), "--json"]), said);
    let odd = run(&plan(&["--gpus-per-node", "3"]));
    assert!(rejected(&odd).contains("8 is not divisible by parallel.gpus_per_node = 3"), "{}", odd.talk);
    let slow = run(&plan(&["--link-gbps", "0"]));
    assert!(rejected(&slow).contains("a number of GB/s from 0.001 to 100000"), "{}", slow.talk);
}
