//! The page with a measurement in it: as a file (`vram-budget open`), or from this machine alone (`vram-budget serve`).

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::Context;
use vram_budget::measure::{Measurement, Options};

use crate::exit::Rejected;
use crate::{import, input, merge};

/// The page that a release brings along (`RUSTFLAGS='--cfg embed_page'`, after `make dist`).
#[cfg(embed_page)]
const EMBEDDED: Option<&str> = Some(include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/dist/vram-budget.html")));
#[cfg(not(embed_page))]
const EMBEDDED: Option<&str> = None;

/// Before this, the page's own program, a measurement is put.
const PROGRAM: &str = "<script type=\"application/octet-stream\" id=\"wasm\">";

/// What to open.
#[derive(Debug, clap::Args)]
pub(crate) struct OpenArgs {
    /// A measurement: a document of record's, or anything that import reads
    file: PathBuf,
    /// The page to write [default: FILE.html]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only write it
    #[arg(long)]
    no_open: bool,
    /// The page in one file, dist/vram-budget.html, where this program does not bring it along
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// What to serve.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// A measurement, read anew at every request [default: the newest vram-*.json here]
    file: Option<PathBuf>,
    /// The port [default: a free one]
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// The page in one file, dist/vram-budget.html, where this program does not bring it along
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
}

/// Writes the page and opens it. Its path goes to stdout.
pub(crate) fn open(args: &OpenArgs) -> anyhow::Result<ExitCode> {
    let html = with_measurement(&page(args.page.as_deref())?, &measurement(&args.file)?)?;
    let out = args.out.clone().unwrap_or_else(|| args.file.with_extension("html"));
    fs::write(&out, html).with_context(|| out.display().to_string())?;
    writeln!(io::stdout(), "{}", out.display())?;
    if !args.no_open {
        show(&out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a file in the browser of this desktop.
fn show(path: &Path) -> anyhow::Result<()> {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet =
        Command::new(program).arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match quiet {
        Ok(status) if status.success() => Ok(()),
        _ => anyhow::bail!("{program} could not open it: open {} in a browser", path.display()),
    }
}

/// The measurement of a file: of several, such as the ranks of a log, one.
fn measurement(file: &Path) -> anyhow::Result<Measurement> {
    let found = import::read(file, &Options::default())?;
    if found.is_empty() {
        return Err(Rejected::because(input::name(file), "no measurement").into());
    }
    Ok(merge::merge(found))
}

/// The page in one file.
fn page(given: Option<&Path>) -> anyhow::Result<String> {
    if let Some(path) = given {
        return input::document(path);
    }
    if let Some(page) = EMBEDDED {
        return Ok(page.into());
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("vram-budget.html")));
    let mut places = beside.into_iter().chain([PathBuf::from("dist/vram-budget.html")]);
    let path = places.find(|path| path.exists());
    let path = path.context("this program brings no page along: name dist/vram-budget.html with --page (make dist)")?;
    input::document(&path)
}

/// The page with the measurement as a data block: no script, so that the page's content security policy need not change.
fn with_measurement(page: &str, measurement: &Measurement) -> anyhow::Result<String> {
    let (before, after) =
        page.split_once(PROGRAM).context("this is not the page in one file, dist/vram-budget.html")?;
    // Nothing in it can end the block.
    let json = serde_json::to_string(measurement)?.replace('<', "\\u003c");
    Ok(format!("{before}<script type=\"application/json\" id=\"measurement\">{json}</script>\n{PROGRAM}{after}"))
}

/// Serves the page on loopback, to whoever knows the address that is printed.
pub(crate) fn serve(args: &ServeArgs) -> anyhow::Result<ExitCode> {
    let page = page(args.page.as_deref())?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))?;
    let port = listener.local_addr()?.port();
    let site = Site { page, token: token()?, port, file: args.file.clone() };
    writeln!(io::stdout(), "http://127.0.0.1:{port}/{}/", site.token)?;
    io::stdout().flush()?;
    // One after another: a page is one request. A client that breaks off is its own affair.
    for stream in listener.incoming().flatten() {
        let _ = site.answer(&stream);
    }
    Ok(ExitCode::SUCCESS)
}

/// 128 random bits, as the system gives them.
fn token() -> anyhow::Result<String> {
    let mut bits = [0; 16];
    fs::File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bits)).context("/dev/urandom")?;
    Ok(bits.iter().map(|byte| format!("{byte:02x}")).collect())
}

struct Site {
    page: String,
    token: String,
    port: u16,
    file: Option<PathBuf>,
}

/// The longest request that is read.
const MOST_REQUEST: u64 = 16 << 10;

impl Site {
    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut lines = BufReader::new(stream.take(MOST_REQUEST)).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut headers = Vec::new();
        for line in lines {
            let line = line?;
            if line.is_empty() {
                break;
            }
            headers.push(line);
        }
        let (status, body) = self.respond(&request, &headers);
        let kind = if status.starts_with("200") { "text/html" } else { "text/plain" };
        write!(
            &mut &*stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\
             Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\nX-Frame-Options: DENY\r\n\r\n{body}",
            body.len()
        )
    }

    /// Only a page of this very address may ask: another site's name that leads here (DNS rebinding) is refused by `Host`, and
    /// what another site's script asks for by `Origin`.
    fn respond(&self, request: &str, headers: &[String]) -> (&'static str, String) {
        let header = |name: &str| {
            let mut found = headers.iter().filter_map(|line| line.split_once(':'));
            found.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
        };
        let own = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        if !header("host").is_some_and(|host| own.iter().any(|own| own == host)) {
            return ("421 Misdirected Request", "This address is served under its own name alone.\n".into());
        }
        if header("origin").is_some_and(|origin| own.iter().all(|own| format!("http://{own}") != *origin)) {
            return ("403 Forbidden", "Another site asks.\n".into());
        }
        let path = match request.split(' ').collect::<Vec<_>>()[..] {
            ["GET", path, "HTTP/1.1" | "HTTP/1.0"] => path,
            _ => return ("405 Method Not Allowed", "Only GET.\n".into()),
        };
        if path.strip_prefix('/').and_then(|path| path.strip_suffix('/')) != Some(&*self.token) {
            return ("404 Not Found", "Open the whole address that was printed.\n".into());
        }
        let file = self.file.clone().or_else(newest);
        let page = match file.map(|file| measurement(&file).and_then(|found| with_measurement(&self.page, &found))) {
            None => Ok(self.page.clone()),
            Some(page) => page,
        };
        page.map_or_else(|error| ("500 Internal Server Error", format!("{error:#}\n")), |page| ("200 OK", page))
    }
}

/// The newest document of `record` in this directory.
fn newest() -> Option<PathBuf> {
    let documents = fs::read_dir(".").ok()?.filter_map(Result::ok).filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("vram-") && name.ends_with(".json")
    });
    documents.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok()).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "<body>\n<script type=\"application/octet-stream\" id=\"wasm\">AAAA</script></body>";

    fn site() -> Site {
        Site { page: PAGE.into(), token: "secret".into(), port: 8000, file: None }
    }

    fn status(request: &str, headers: &[&str]) -> &'static str {
        site().respond(request, &headers.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>()).0
    }

    #[test]
    fn only_the_address_itself_is_answered() {
        let host = "Host: 127.0.0.1:8000";
        let get = "GET /secret/ HTTP/1.1";
        assert_eq!(status(get, &[host]), "200 OK");
        assert_eq!(status(get, &["host: localhost:8000", "Origin: http://localhost:8000"]), "200 OK");
        for headers in
            [&[][..], &["Host: evil.example:8000"], &["Host: 127.0.0.1"], &["Host: 127.0.0.1:8000.evil.example"]]
        {
            assert_eq!(status(get, headers), "421 Misdirected Request", "{headers:?}");
        }
        for origin in ["Origin: https://evil.example", "Origin: null", "Origin: http://127.0.0.1:9000"] {
            assert_eq!(status(get, &[host, origin]), "403 Forbidden", "{origin}");
        }
        for path in ["/", "/secret", "/secret/x", "/other/", "/../secret/", "//secret/"] {
            assert_eq!(status(&format!("GET {path} HTTP/1.1"), &[host]), "404 Not Found", "{path}");
        }
        for request in ["POST /secret/ HTTP/1.1", "", "GET /secret/", "GET  /secret/ HTTP/1.1", "GET /secret/ HTTP/2"] {
            assert_eq!(status(request, &[host]), "405 Method Not Allowed", "{request}");
        }
    }

    #[test]
    fn a_measurement_cannot_leave_its_block() {
        let mut hostile = Measurement::new(Vec::new());
        hostile.id = Some("</script><script>alert(1)</script>".into());
        let html = with_measurement(PAGE, &hostile).unwrap();
        assert_eq!(html.matches("</script>").count(), 2, "{html}");
        assert!(html.contains("id=\"measurement\">{\"format\""), "{html}");
        let text = html.split_once("id=\"measurement\">").unwrap().1.split_once("</script>").unwrap().0;
        let back: Measurement = serde_json::from_str(text).unwrap();
        assert_eq!(back, hostile);
        assert!(with_measurement("<html></html>", &hostile).is_err());
    }
}
