//! One `GET`, in plain or over TLS. HTTP/1.0: the answer is whole when the server closes, or as long as it says.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::exit::Rejected;

/// The longest answer that is read.
const MOST_ANSWER: u64 = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// Where credentials are looked for: never among the arguments, which every process of the machine may read.
const TOKEN: &str = "VRAM_BUDGET_PROMETHEUS_TOKEN";
const USER: &str = "VRAM_BUDGET_PROMETHEUS_USER";
const PASSWORD: &str = "VRAM_BUDGET_PROMETHEUS_PASSWORD";

/// A server's address.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    tls: bool,
    /// As it stands in the URL.
    authority: String,
    host: String,
    port: u16,
    /// Before every path.
    prefix: String,
}

impl Address {
    fn of(url: &str) -> Result<Self, String> {
        let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return Err("the address begins with http:// or https://".into()),
        };
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(format!("no user in the address: set {USER} and {PASSWORD}"));
        }
        if url.chars().any(|c| c.is_control() || c == ' ') {
            return Err("the address has spaces in it".into());
        }
        // `[::1]` has colons of its own.
        let port = authority.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, port) = port.unwrap_or((authority, if tls { 443 } else { 80 }));
        let prefix = prefix.trim_end_matches('/');
        Ok(Self {
            tls,
            authority: authority.to_owned(),
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            prefix: if prefix.is_empty() { String::new() } else { format!("/{prefix}") },
        })
    }

    /// Whether what is sent stays on this machine.
    fn is_here(&self) -> bool {
        self.host == "localhost" || self.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// The header that says who asks, of the environment's variables.
fn authorization(variable: impl Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    let header = match (variable(TOKEN), variable(USER), variable(PASSWORD)) {
        (Some(token), None, None) => format!("Bearer {token}"),
        (None, Some(user), password) => {
            format!("Basic {}", base64(format!("{user}:{}", password.unwrap_or_default()).as_bytes()))
        }
        (None, None, None) => return Ok(None),
        (Some(_), ..) => return Err(format!("{TOKEN} and a user or password: one of them")),
        (None, None, Some(_)) => return Err(format!("{PASSWORD} without {USER}")),
    };
    // A line break would be a header of its own.
    if header.chars().any(char::is_control) {
        return Err(format!("{TOKEN}, {USER} or {PASSWORD} has a line break in it"));
    }
    Ok(Some(header))
}

/// The body of `GET URL/path`.
#[expect(clippy::disallowed_methods, reason = "credentials come in the environment")]
pub(super) fn get(url: &str, path: &str) -> anyhow::Result<Vec<u8>> {
    let rejected = |reason: String| Rejected::because(url, reason);
    let address = Address::of(url).map_err(rejected)?;
    let who = authorization(|name| std::env::var(name).ok().filter(|value| !value.is_empty())).map_err(rejected)?;
    if who.is_some() && !address.tls && !address.is_here() {
        return Err(rejected("credentials are sent over https:// alone, or to this machine".into()).into());
    }
    let mut request =
        format!("GET {}{path} HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\n", address.prefix, address.authority);
    if let Some(who) = &who {
        request = format!("{request}Authorization: {who}\r\n");
    }
    let stream = TcpStream::connect((address.host.as_str(), address.port)).with_context(|| url.to_owned())?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let answer = if address.tls {
        asked(tls(&address.host, stream).with_context(|| url.to_owned())?, &request)
    } else {
        asked(stream, &request)
    };
    body(url, answer.with_context(|| url.to_owned())?)
}

/// The stream in TLS, to a server for which the machine's certificates vouch.
fn tls(host: &str, stream: TcpStream) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map_or_else(String::new, |error| format!(": {error}"));
        anyhow::bail!(
            "no certificates found on this machine that could vouch for the server{why} (SSL_CERT_FILE names some)"
        );
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned())?;
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), name)?, stream))
}

/// Everything that the server answers.
fn asked(mut stream: impl Read + Write, request: &str) -> std::io::Result<Vec<u8>> {
    stream.write_all(request.as_bytes())?;
    stream.write_all(b"\r\n")?;
    stream.flush()?;
    let mut answer = Vec::new();
    match stream.take(MOST_ANSWER + 1).read_to_end(&mut answer) {
        // Some servers close without a word; whether anything is missing, the length says.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && length(&answer).is_some() => Ok(answer),
        Err(error) => Err(error),
        Ok(_) => Ok(answer),
    }
}

/// Where the head ends.
fn head(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|four| four == b"\r\n\r\n")
}

/// How long the body is, where the head says.
fn length(answer: &[u8]) -> Option<usize> {
    let head = String::from_utf8_lossy(&answer[..head(answer)?]).into_owned();
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).find_map(|(_, n)| n.trim().parse().ok())
}

/// The body of an answer that may be read.
fn body(url: &str, mut answer: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    if answer.len() as u64 > MOST_ANSWER {
        return Err(Rejected::because(url, "an answer larger than 256 MiB: ask for less time or fewer series").into());
    }
    let end = head(&answer).context("no HTTP answer")?;
    if length(&answer).is_some_and(|length| answer.len() - end - 4 < length) {
        anyhow::bail!("{url}: the answer is cut off");
    }
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap_or_default();
    // Prometheus explains a bad query in the body of a 400 or 422.
    if !matches!(status, "200" | "400" | "422") {
        let line = head.lines().next().unwrap_or_default();
        let help = match status {
            "401" | "403" => format!(": credentials are {TOKEN}, or {USER} and {PASSWORD}, in the environment"),
            "301" | "302" | "307" | "308" => ": give the address that it points to".into(),
            _ => String::new(),
        };
        return Err(Rejected::because(url, format!("the server answers {line}{help}")).into());
    }
    Ok(answer.split_off(end + 4))
}

/// Of RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = char::from(LETTERS[bits >> (18 - 6 * at) & 63]);
            out.push(if at <= three.len() { letter } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_and_how() {
        let of = |url: &str| Address::of(url).map(|a| (a.tls, a.host, a.port, a.prefix));
        assert_eq!(of("http://localhost:9090").unwrap(), (false, "localhost".into(), 9090, String::new()));
        assert_eq!(of("https://metrics.example/prom/").unwrap(), (true, "metrics.example".into(), 443, "/prom".into()));
        assert_eq!(of("https://[::1]:9443").unwrap(), (true, "::1".into(), 9443, String::new()));
        assert_eq!(of("http://[::1]").unwrap(), (false, "::1".into(), 80, String::new()));
        assert!(of("https://me:secret@metrics.example").unwrap_err().contains(USER));
        assert!(of("http://a\r\nX: y").is_err() && of("ftp://a").is_err());
    }

    #[test]
    fn credentials_are_one_kind_and_no_second_header() {
        let of = |set: &[(&str, &str)]| {
            authorization(|name| set.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(TOKEN, "abc")]).unwrap().unwrap(), "Bearer abc");
        // RFC 7617's own example.
        let basic = of(&[(USER, "Aladdin"), (PASSWORD, "open sesame")]);
        assert_eq!(basic.unwrap().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        for wrong in [&[(TOKEN, "a"), (USER, "b")][..], &[(PASSWORD, "p")], &[(TOKEN, "a\r\nX: y")]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn base64_as_the_standard_has_it() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_no_answer() {
        let of = |text: &str| body("u", text.as_bytes().to_vec()).map_err(|error| error.to_string());
        assert_eq!(of("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}").unwrap(), b"{}");
        assert_eq!(of("HTTP/1.0 200 OK\r\n\r\n{}").unwrap(), b"{}");
        assert!(of("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n{}").unwrap_err().contains("cut off"));
        assert!(of("nonsense").is_err() && of("HTTP/1.0 404 Not Found\r\n\r\n").is_err());
    }
}
