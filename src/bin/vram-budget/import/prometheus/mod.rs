//! A fleet's GPUs as a Prometheus server has them: one measurement a series of a range query, read through the server's HTTP
//! API (`/api/v1/query_range`).

mod http;

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::Deserialize;
use vram_budget::measure::{Figure, Gpu, Measurement, Producer, Reading, ReadingName, Reported, Scope, Series, Unit};

use crate::exit::Rejected;

/// What to ask of which server.
#[derive(Debug, clap::Args)]
pub(super) struct Server {
    /// A Prometheus server, such as http://localhost:9090 or https://…: one measurement for each series of --query-range.
    /// Credentials: VRAM_BUDGET_PROMETHEUS_TOKEN, or …_USER and …_PASSWORD, in the environment
    #[arg(long, value_name = "URL", requires = "query_range")]
    pub(super) prometheus: Option<String>,
    /// The query, such as DCGM_FI_DEV_FB_USED{job="train"}
    #[arg(long, value_name = "QUERY", requires = "prometheus")]
    query_range: Option<String>,
    /// How far back, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(1..), requires = "prometheus")]
    last: u64,
    /// The end, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS", requires = "prometheus")]
    until: Option<u64>,
    /// Seconds between two points
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..), requires = "prometheus")]
    every: u64,
}

#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    error: Option<String>,
    data: Option<Data>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Of>,
}

#[derive(Debug, Deserialize)]
struct Of {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// Asks the server; a measurement for each series.
pub(super) fn read(args: &Server, unit: Option<Unit>) -> anyhow::Result<Vec<Measurement>> {
    let url = args.prometheus.as_deref().unwrap_or_default();
    let query = args.query_range.as_deref().unwrap_or_default();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let end = args.until.unwrap_or_else(now);
    let start = end.saturating_sub(args.last);
    let path = format!("/api/v1/query_range?query={}&start={start}&end={end}&step={}", encoded(query), args.every);
    measurements(&http::get(url, &path)?, unit).map_err(|reason| Rejected::because(url, reason).into())
}

/// What the answer says, in the unit that the metric's name tells; else in `unit`.
fn measurements(answer: &[u8], unit: Option<Unit>) -> Result<Vec<Measurement>, String> {
    let answer: Answer = serde_json::from_slice(answer).map_err(|error| format!("no answer of Prometheus: {error}"))?;
    let data = match answer.data {
        Some(data) if answer.status == "success" => data,
        _ => return Err(answer.error.unwrap_or_else(|| "the server gives no data".into())),
    };
    if data.result_type != "matrix" {
        return Err(format!("the query gives a {} and no series over time", data.result_type));
    }
    if data.result.is_empty() {
        return Err("the query finds no series in this time".into());
    }
    let mut found: Vec<Measurement> =
        data.result.into_iter().map(|of| measurement(of, unit)).collect::<Result<_, _>>()?;
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

fn measurement(of: Of, unit: Option<Unit>) -> Result<Measurement, String> {
    let label = |names: &[&str]| names.iter().find_map(|name| of.metric.get(*name)).cloned();
    let name = label(&["__name__"]).unwrap_or_else(|| "memory".into());
    let unit = unit
        .or_else(|| unit_of(&name))
        .ok_or_else(|| format!("nothing tells the unit of {name}: say it, --unit B|MB|MiB|GB|GiB"))?;
    let points: Option<Vec<[i64; 2]>> = of
        .values
        .iter()
        // A gap is written as not a number.
        .filter(|(_, value)| value != "NaN")
        .map(|(at, value)| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "within 2⁵³, checked")]
            let point = (value.parse::<f64>().ok()? * unit.bytes() as f64, *at as i64);
            #[expect(clippy::cast_possible_truncation, reason = "within 2⁵³, checked")]
            (0.0..9e15).contains(&point.0).then(|| [point.1, point.0.round() as i64])
        })
        .collect();
    let points = points.ok_or_else(|| format!("{name} has values that are no memory"))?;

    let mut found = Measurement::new(Vec::new());
    found.producer = Some(Producer { name: "prometheus".into(), version: None });
    let job = label(&["hpc_job", "slurm_job_id", "exported_pod", "pod", "exported_job", "job"]);
    let host = label(&["Hostname", "hostname", "node", "instance"]);
    let gpu = label(&["gpu", "minor_number", "index", "device"]);
    let named = [("", host.as_ref()), ("GPU ", gpu.as_ref()), ("job ", job.as_ref())];
    let id: Vec<String> = named.iter().filter_map(|(what, of)| of.map(|of| format!("{what}{of}"))).collect();
    found.id = (!id.is_empty()).then(|| id.join(", "));
    found.gpus = vec![Gpu {
        index: gpu.as_ref().and_then(|gpu| gpu.trim_start_matches("nvidia").parse().ok()).unwrap_or(0),
        name: label(&["modelName", "name", "gpu_name"]),
        ..Gpu::default()
    }];
    let peak = points.iter().map(|[_, bytes]| *bytes).max();
    let figure = peak.map_or_else(|| Figure::Unavailable("the series has no points".into()), Figure::Bytes);
    let used = ReadingName::Reported(Reported::Used);
    found.readings = vec![Reading { scope: Scope::Device, ..Reading::new(used, used.tier(), figure) }];
    if !points.is_empty() {
        let tier = used.tier();
        found.series = vec![Series { name, tier, warm_up: 0, every: None, points }];
    }
    Ok(found)
}

/// DCGM counts framebuffer in MiB; Prometheus' convention puts the unit into the name.
fn unit_of(name: &str) -> Option<Unit> {
    match name {
        _ if name.starts_with("DCGM_FI_DEV_FB_") => Some(Unit::MiB),
        _ if name.ends_with("_bytes") => Some(Unit::B),
        _ if name.ends_with("_mib") => Some(Unit::MiB),
        _ => None,
    }
}

/// Everything but letters, digits and `-._~` as `%XX`.
fn encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::new(), |mut out, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_series_is_a_measurement_of_a_gpu() {
        let answer = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"DCGM_FI_DEV_FB_USED","gpu":"3","modelName":"NVIDIA A100","Hostname":"n7","job":"dcgm"},
             "values":[[1700000000,"40000"],[1700000015,"41000"],[1700000030,"NaN"]]}]}}"#;
        let found = measurements(answer, None).unwrap();
        let one = &found[0];
        assert_eq!(one.id.as_deref(), Some("n7, GPU 3, job dcgm"));
        assert_eq!((one.gpus[0].index, one.gpus[0].name.as_deref()), (3, Some("NVIDIA A100")));
        assert_eq!(one.bytes(ReadingName::Reported(Reported::Used)), Some(41_000 << 20));
        assert_eq!(one.series[0].points, [[1_700_000_000, 40_000 << 20], [1_700_000_015, 41_000 << 20]]);
    }

    #[test]
    fn what_is_no_such_answer_is_said() {
        let said = |text: &str, unit| measurements(text.as_bytes(), unit).unwrap_err();
        let of = |name: &str| {
            format!(
                r#"{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{"__name__":"{name}"}},"values":[[1,"5"]]}}]}}}}"#
            )
        };
        assert!(said("<html>", None).contains("no answer of Prometheus"));
        assert_eq!(said(r#"{"status":"error","error":"parse error"}"#, None), "parse error");
        assert!(said(r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#, None).contains("no series"));
        assert!(said(r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#, None).contains("vector"));
        assert!(said(&of("some_gpu_memory"), None).contains("--unit"));
        assert_eq!(
            measurements(of("some_gpu_memory").as_bytes(), Some(Unit::GiB)).unwrap()[0].series[0].points,
            [[1, 5 << 30]]
        );
        assert_eq!(measurements(of("x_used_bytes").as_bytes(), None).unwrap()[0].series[0].points, [[1, 5]]);
    }

    #[test]
    fn queries_survive_the_address() {
        assert_eq!(encoded(r#"max{a="b c"}"#), "max%7Ba%3D%22b%20c%22%7D");
    }
}
