//! Quantities with types: bytes, counts, seconds. A byte count is a `u64` and stays one; only formatting rounds.

use core::fmt;
use core::iter::Sum;
use core::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// 2³⁰ bytes, what `GiB` means everywhere in this crate.
pub const GIB: u64 = 1 << 30;
/// 2²⁰ bytes.
pub const MIB: u64 = 1 << 20;
/// The largest byte count that a document may carry: 2⁵³ − 1, beyond which JavaScript's numbers lose bytes.
pub const MAX_DOCUMENT_BYTES: u64 = (1 << 53) - 1;

/// A number of bytes.
///
/// Addition and subtraction check for overflow and panic rather than wrap; sizes that come from user input are bounded
/// before they become `Bytes` (see [`Bytes::product`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    /// Whether there are none.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// No bytes: a known zero, which is not the same as "not known" (`Option::None`).
    pub const ZERO: Self = Self(0);

    /// `n` MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// The count itself.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The product of dimensions, or `None` when it exceeds [`MAX_DOCUMENT_BYTES`].
    #[must_use]
    pub fn product(factors: &[u64]) -> Option<Self> {
        let mut all: u64 = 1;
        for &f in factors {
            all = all.checked_mul(f)?;
        }
        (all <= MAX_DOCUMENT_BYTES).then_some(Self(all))
    }

    /// The count in GiB, for display and ratios only.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only: 53 bits are more than any reader sees")]
    pub fn as_gib(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// The count in MiB, for display and ratios only.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "display only: 53 bits are more than any reader sees")]
    pub fn as_mib(self) -> f64 {
        self.0 as f64 / MIB as f64
    }

    /// The count as a float, for ratios only.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "ratios only: 53 bits are more than any reader sees")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }

    /// `self + other`, or `None` past `u64`.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// `self - other`, or `None` below zero.
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// `self - other`, or zero: "how much is left" where nothing left is the answer.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Rounded up to a multiple of `unit` (a power of two).
    #[must_use]
    pub fn round_up(self, unit: u64) -> Self {
        Self(self.0.next_multiple_of(unit))
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

/// Binary units with three significant digits, always with the unit: `23.4 GiB`. The alternate form adds the exact
/// count: `23.4 GiB (25125558681 B)`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.as_f64();
        let mut unit = 0;
        // 999.5 and more would print as 1000 or worse: the next unit says it better.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 {
            write!(f, "{} B", self.0)?;
            return Ok(());
        }
        write!(f, "{} {}", three_digits(value), UNITS[unit])?;
        if f.alternate() {
            write!(f, " ({} B)", self.0)?;
        }
        Ok(())
    }
}

/// A non-negative number with three significant digits, without an exponent: `0.977`, `9.77`, `97.7`, `977`, `9770`.
#[must_use]
pub fn three_digits(value: f64) -> String {
    let decimals = match value {
        v if v < 0.000_5 => return "0".into(),
        v if v < 0.999_5 => 3,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// A count with its thousands apart, by a narrow no-break space: `128 256`. Four digits stay together.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    if digits.len() <= 4 {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() * 2);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A size as people write it: `80 GiB`, `80GB`, `24576 MiB`, `85899345920`. A bare number is bytes.
///
/// # Errors
/// What was expected, when the text is not a size or does not fit [`MAX_DOCUMENT_BYTES`].
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = (text[..split].replace('_', ""), text[split..].trim());
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => MIB,
        "gib" => GIB,
        "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{unit}` is not a unit of size: use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")),
    };
    let (digits, tenth) =
        decimal(&number).ok_or_else(|| format!("`{text}` is not a size: write a number and a unit, such as 24 GiB"))?;
    // To the nearest byte. At most 18 digits times a terabyte stay far below 2¹²⁷.
    let bytes = (u128::from(digits) * u128::from(scale) * 2 / u128::from(tenth)).div_ceil(2);
    u64::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes <= MAX_DOCUMENT_BYTES)
        .map(Bytes)
        .ok_or_else(|| format!("`{text}` is more than 8 PiB"))
}

/// A decimal number without sign or exponent as a fraction: `1.25` is 125 ÷ 100. Digits past the eighteenth are dropped
/// after the point and refused before it.
fn decimal(text: &str) -> Option<(u64, u64)> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.len() + part.len() == 0 || !whole.bytes().chain(part.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let (mut digits, mut tenth) = (0u64, 1u64);
    for digit in whole.trim_start_matches('0').bytes() {
        digits = digits.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        if digits >= MOST_DIGITS {
            return None;
        }
    }
    for digit in part.bytes() {
        if digits >= MOST_DIGITS / 10 || tenth >= MOST_DIGITS / 10 {
            break;
        }
        digits = digits * 10 + u64::from(digit - b'0');
        tenth *= 10;
    }
    Some((digits, tenth))
}

/// The first number of nineteen digits.
const MOST_DIGITS: u64 = 1_000_000_000_000_000_000;

/// A decimal number without sign or exponent, as people type one.
///
/// The standard library's parser reads every spelling of every float and brings tables for it; this reads what a field
/// takes, exactly for as many digits as a float holds.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "both are rounded once, by less than one unit in the last place")]
pub fn parse_decimal(text: &str) -> Option<f64> {
    decimal(text).map(|(digits, tenth)| digits as f64 / tenth as f64)
}

/// A duration in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Seconds(pub f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_print_with_three_digits_and_their_unit() {
        let cases = [
            (0, "0 B"),
            (512, "512 B"),
            (1023, "0.999 KiB"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (MIB * 1000, "0.977 GiB"),
            (GIB * 80, "80.0 GiB"),
            (GIB * 142, "142 GiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:#}", Bytes(1_610_612_736)), "1.50 GiB (1610612736 B)");
    }

    #[test]
    fn counts_group_by_thousands_from_five_digits_on() {
        for (count, text) in
            [(0, "0"), (4096, "4096"), (14_336, "14\u{202f}336"), (1_000_000, "1\u{202f}000\u{202f}000")]
        {
            assert_eq!(grouped(count), text);
        }
    }

    #[test]
    fn gib_and_gb_are_not_mixed() {
        assert_eq!(parse_bytes("80 GiB"), Ok(Bytes(80 * GIB)));
        assert_eq!(parse_bytes("80GB"), Ok(Bytes(80_000_000_000)));
        assert_eq!(parse_bytes("85899345920"), Ok(Bytes(80 * GIB)));
        assert!(parse_bytes("80 gigs").is_err());
        assert!(parse_bytes("-1 GiB").is_err());
        assert!(parse_bytes("1e9").is_err());
        assert!(parse_bytes("99999999 TiB").is_err());
        assert!(parse_bytes("99999999999999999999999 B").is_err());
        assert!(parse_bytes("1.2.3 GiB").is_err());
        assert!(parse_bytes(".").is_err());
        assert_eq!(parse_bytes("23.64 GiB"), Ok(Bytes(25_383_256_719)));
        assert_eq!(parse_bytes("0.5 B"), Ok(Bytes(1)));
        assert_eq!(parse_bytes("1.00000000000000000000000001 KiB"), Ok(Bytes(1024)));
    }

    #[test]
    fn decimals_are_the_nearest_float() {
        for text in ["0", "0.1", "0.9", "1", "80", "7.5", "33.3", "0.07", "99.99", "123456789.25", ".5", "5."] {
            let standard: f64 = text.parse().unwrap();
            assert_eq!(parse_decimal(text), Some(standard), "{text}");
        }
        for text in ["", ".", "-1", "1e3", "nan", "inf", "1.2.3", "0x1", " 1"] {
            assert_eq!(parse_decimal(text), None, "{text}");
        }
    }

    #[test]
    fn products_refuse_what_a_document_cannot_carry() {
        assert_eq!(Bytes::product(&[2, 3, 4]), Some(Bytes(24)));
        assert_eq!(Bytes::product(&[u64::MAX, 2]), None);
        assert_eq!(Bytes::product(&[1 << 53]), None);
    }
}
