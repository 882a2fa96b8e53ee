//! Times and durations on the command line.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in Unix milliseconds.
pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Now, in Unix seconds.
pub(super) fn now() -> u64 {
    now_ms() / 1000
}

/// `90s`, `15m`, `24h`, `7d`, in seconds.
pub(super) fn duration(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a duration: write 90s, 15m, 24h or 7d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(bad)?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(bad()),
    };
    let value: u64 = number.parse().map_err(|_| bad())?;
    value.checked_mul(factor).filter(|seconds| *seconds > 0).ok_or_else(bad)
}

/// Unix seconds, or `2026-11-30T12:00:00Z`.
pub(super) fn instant(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a time: write Unix seconds or 2026-11-30T12:00:00Z");
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let (date, time) = text.strip_suffix('Z').and_then(|rest| rest.split_once('T')).ok_or_else(bad)?;
    let numbers = |text: &str, separator: char| -> Option<[u64; 3]> {
        let parts: Vec<u64> = text.split(separator).map(str::parse).collect::<Result<_, _>>().ok()?;
        parts.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-').ok_or_else(bad)?;
    let [hour, minute, second] = numbers(time, ':').ok_or_else(bad)?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !in_range {
        return Err(bad());
    }
    // Days since 1970-01-01 in the proleptic Gregorian calendar, with the year starting in March.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1 - 719_468;
    Ok(days * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_durations_are_strict() {
        assert_eq!(instant("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(instant("2001-09-09T01:46:40Z"), Ok(1_000_000_000));
        assert_eq!(instant("2024-02-29T12:00:00Z"), Ok(1_709_208_000));
        assert_eq!(instant("1700000000"), Ok(1_700_000_000));
        for bad in ["", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01", "2026-01-01T25:00:00Z"] {
            assert!(instant(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("24h"), Ok(86_400));
        for bad in ["", "h", "24", "0s", "-1h", "1y", "99999999999999999999d", "1é"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
