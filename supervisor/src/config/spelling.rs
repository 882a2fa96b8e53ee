//! "Did you mean": the known word that a mistyped one is closest to.

/// The known word that a mistyped one is closest to, if any is close.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let limit = (word.chars().count() / 3).clamp(1, 3);
    known.iter().map(|best| (distance(word, best), *best)).filter(|(far, _)| *far <= limit).min().map(|(_, best)| best)
}

/// Edits (insert, remove, replace, swap neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut older: Vec<usize> = Vec::new();
    let mut old: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = old[j] + usize::from(from != to);
            let mut best = replaced.min(old[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(older[j - 1] + 1);
            }
            row.push(best);
        }
        older = std::mem::replace(&mut old, row);
    }
    old.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_word_suggests_nothing() {
        assert_eq!(nearest("colour", &["bundle", "keys", "store"]), None);
        assert_eq!(nearest("bundel", &["bundle", "keys", "store"]), Some("bundle"));
        assert_eq!(nearest("stale_grase", &["stale_grace", "store"]), Some("stale_grace"));
        assert_eq!(nearest("x", &["y"]), Some("y"));
    }
}
