//! What vLLM says of memory when it starts: an inference server, no training. Recognised so that it can be said.

use crate::measure::format::messages::Kind;
use crate::measure::format::text::{Cursor, Units, floor};
use crate::measure::{Failure, FailureKind, FormatId, Measurement, ReadingName, Reported, Source};

pub(super) const KIND: Kind = Kind {
    id: FormatId::Vllm,
    marks: &[
        "total_gpu_memory",
        "Freememoryondevice",
        "Noavailablememoryforthecacheblocks",
        "modelweightstake",
        "Toserveatleastonerequestwiththemodel",
        "Themodel'smaxseqlen(",
        "Modelloadingtook",
        "AvailableKVcachememory:",
    ],
    read,
};

fn read(text: &str, at: usize) -> Option<(Measurement, usize)> {
    let here = &text[at..at + floor(&text[at..], 700)];
    let mut message = Measurement::of(Source::new(FormatId::Vllm));
    let mut failed = true;
    let mut what = None;
    let mut end = at + 1;
    let mut add = |name, size: Option<super::text::Size>| {
        let known = size.is_some();
        message.readings.extend(size.map(|size| size.reading(name)));
        known
    };
    if let Some(rest) = here.strip_prefix("Freememoryondevice") {
        // [cuda:0] (19.77/22.05 GiB) on startup is less than desired GPU memory utilization (0.9, 19.84 GiB)
        let mut cursor = Cursor::new(rest);
        let device = if cursor.eat("cuda:") { cursor.number() } else { None };
        if !cursor.eat("(") {
            return None;
        }
        let free = cursor.up_to("/")?;
        let total = cursor.rest;
        add(ReadingName::Reported(Reported::Total), cursor.size(Units::Binary));
        // One unit is written for both.
        let unit = total.get(total.find("iB)")?.checked_sub(1)?..total.find(')')?)?;
        let free = format!("{free}{unit}");
        add(ReadingName::Reported(Reported::Free), Cursor::new(&free).size(Units::Binary));
        cursor.eat(")onstartupislessthandesiredGPUmemoryutilization(");
        cursor.up_to(",")?;
        add(ReadingName::Reported(Reported::Tried), cursor.size(Units::Binary));
        message.source.as_mut()?.device = device.and_then(|device| u32::try_from(device).ok());
    } else if let Some(rest) = here.strip_prefix("Toserveatleastonerequestwiththemodel") {
        // ('s max seq len (131072), (4.54 GiB KV cache is needed, which is larger than the available KV cache memory (…)
        let mut cursor = Cursor::new(rest);
        cursor.up_to("maxseqlen(")?;
        what = Some(format!("{} tokens", cursor.number()?));
        cursor.up_to("(")?;
        add(ReadingName::Reported(Reported::Tried), cursor.size(Units::Binary));
        cursor.up_to("availableKVcachememory(")?;
        add(ReadingName::Reported(Reported::KvCache), cursor.size(Units::Binary));
    } else if let Some(rest) = here.strip_prefix("Themodel'smaxseqlen(") {
        // Says both in tokens.
        let mut cursor = Cursor::new(rest);
        what = Some(format!("{} tokens", cursor.number()?));
        cursor.eat(")islargerthanthemaximumnumberoftokensthatcanbestoredinKVcache(").then_some(())?;
    } else if let Some(rest) = here.strip_prefix("Modelloadingtook") {
        // GB are 2^30 bytes, too (`vllm/worker/model_runner.py`).
        failed = false;
        if !add(ReadingName::Params, Cursor::new(rest).size(Units::AnyBinary)) {
            return None;
        }
    } else if let Some(rest) = here.strip_prefix("AvailableKVcachememory:") {
        failed = false;
        if !add(ReadingName::Reported(Reported::KvCache), Cursor::new(rest).size(Units::Binary)) {
            return None;
        }
    } else if !here.starts_with("Noavailable") {
        failed = false;
        let after = |labels: [&str; 2]| {
            labels.into_iter().find_map(|label| {
                let (_, rest) = here.split_once(label)?;
                Cursor::new(rest).size(Units::Binary)
            })
        };
        let mut known = false;
        if here.starts_with("total") {
            known |= add(ReadingName::Reported(Reported::Total), after(["total_gpu_memory(", "total_gpu_memory"]));
            let allowed = here.split_once("gpu_memory_utilization(").and_then(|(_, rest)| rest.split_once(")="));
            let allowed = allowed.and_then(|(_, rest)| Cursor::new(rest).size(Units::Binary));
            add(
                ReadingName::Reported(Reported::Allowed),
                allowed.or_else(|| after(["currentvLLMinstancecanuse", "currentvLLMinstancecanuse("])),
            );
        }
        known |= add(ReadingName::Params, after(["modelweightstake", "modelweightstakes"]));
        add(ReadingName::Reported(Reported::NonTorch), after(["non_torch_memorytakes", "non_torch_memory"]));
        let activations = after(["activationpeakmemorytakes", "activationpeakmemory"]);
        add(ReadingName::Reported(Reported::Activations), activations);
        add(ReadingName::Reported(Reported::KvCache), after(["reservedforKVCacheis", "available_kv_cache_memory"]));
        if !known {
            return None;
        }
        // The whole profile is taken at once.
        end = at + here.find("modelweightstake").map_or(1, |at| at + 1);
    }
    if failed {
        message.failure = Some(Failure { what, ..Failure::new(FailureKind::InferenceStart) });
    }
    Some((message, end))
}
