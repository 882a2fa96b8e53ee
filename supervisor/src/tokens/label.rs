//! What records call whoever a token names.

/// Longest part of a name that is shown, in bytes. The decision's input has all of it.
const LONGEST: usize = 256;

/// Texts of an issuer are of any length and of any characters. Printable ASCII stands for itself, anything else and the
/// backslash as `\u{...}`: no two texts look the same, and none does anything to a terminal.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars() {
        let before = shown.len();
        match letter {
            ' '..='~' if letter != '\\' => shown.push(letter),
            other => shown.extend(other.escape_unicode()),
        }
        if shown.len() > LONGEST {
            shown.truncate(before);
            shown.push_str("...");
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: C6j
    #[test]
    fn a_name_of_any_text_is_short_printable_and_its_own() {
        assert_eq!(shown("alice@example.com"), "alice@example.com");
        assert_eq!(shown("a\\u{62}\n\u{202e}\u{e9}"), "a\\u{5c}u{62}\\u{a}\\u{202e}\\u{e9}");
        assert_eq!(shown(&"x".repeat(256)), "x".repeat(256));
        assert_eq!(shown(&"x".repeat(257)), format!("{}...", "x".repeat(256)));
        assert_eq!(shown(&"\u{e9}".repeat(1000)), format!("{}...", "\\u{e9}".repeat(42)));
    }
}
