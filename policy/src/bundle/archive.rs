//! Reads and writes the gzip tar of a bundle, with limits against bombs.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use tar::EntryType;

use super::{BundleError, MAX_COMPRESSED, MAX_ENTRIES, MAX_UNPACKED};

/// Longest name of an entry.
const MAX_NAME: usize = 512;

/// Unpacks a bundle into name and bytes. Names are relative, without `./` in front.
pub(super) fn unpack(bundle: &[u8]) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
    let tar = gunzip(bundle)?;
    let mut archive = tar::Archive::new(&tar[..]);
    let mut files = BTreeMap::new();
    let broken = |error: std::io::Error| BundleError::Archive(error.to_string());
    for (count, entry) in archive.entries().map_err(broken)?.enumerate() {
        if count >= MAX_ENTRIES {
            return Err(BundleError::TooLarge("4096 entries"));
        }
        let mut entry = entry.map_err(broken)?;
        let kind = entry.header().entry_type();
        let raw = entry.path_bytes().into_owned();
        if kind == EntryType::Directory {
            continue;
        }
        let name = plain_name(&raw)?;
        if kind != EntryType::Regular {
            return Err(BundleError::Entry(name, "not a regular file"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(broken)?;
        if u64::try_from(content.len()).ok() != Some(entry.size()) {
            return Err(BundleError::Archive(format!("{name:?} is cut short")));
        }
        if files.insert(name.clone(), content).is_some() {
            return Err(BundleError::DuplicateEntry(name));
        }
    }
    Ok(files)
}

/// Packs files into a bundle. The same files give the same bytes.
pub(super) fn pack(files: &BTreeMap<String, Vec<u8>>) -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(u64::try_from(content.len()).map_err(std::io::Error::other)?);
        builder.append_data(&mut header, name, &content[..])?;
    }
    let mut gzip = builder.into_inner()?;
    gzip.flush()?;
    gzip.finish()
}

fn gunzip(bundle: &[u8]) -> Result<Vec<u8>, BundleError> {
    if bundle.len() > MAX_COMPRESSED {
        return Err(BundleError::TooLarge("16 MiB compressed"));
    }
    let mut decoder = GzDecoder::new(bundle);
    let mut tar = Vec::new();
    let limit = u64::try_from(MAX_UNPACKED).unwrap_or(u64::MAX).saturating_add(1);
    let broken = |error: std::io::Error| BundleError::Archive(error.to_string());
    decoder.by_ref().take(limit).read_to_end(&mut tar).map_err(broken)?;
    if tar.len() > MAX_UNPACKED {
        return Err(BundleError::TooLarge("64 MiB unpacked"));
    }
    if !decoder.into_inner().is_empty() {
        return Err(BundleError::Archive("something behind the gzip stream".to_owned()));
    }
    Ok(tar)
}

fn plain_name(raw: &[u8]) -> Result<String, BundleError> {
    let shown = || String::from_utf8_lossy(raw).chars().take(MAX_NAME).collect::<String>();
    let refuse = |why| Err(BundleError::Entry(shown(), why));
    let Ok(text) = std::str::from_utf8(raw) else { return refuse("the name is not UTF-8") };
    if text.len() > MAX_NAME {
        return refuse("the name is too long");
    }
    if text.chars().any(|char| char.is_control() || char == '\\') {
        return refuse("the name has a control character or a backslash");
    }
    let name = text.strip_prefix("./").or_else(|| text.strip_prefix('/')).unwrap_or(text);
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("the name has an empty or dot segment");
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tar_with(name: &[u8], kind: EntryType, twice: bool) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(1);
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_cksum();
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        for _ in 0..=usize::from(twice) {
            gzip.write_all(header.as_bytes()).expect("memory");
            let mut block = [0; 512];
            block[0] = b'x';
            gzip.write_all(&block).expect("memory");
        }
        gzip.write_all(&[0; 1024]).expect("memory");
        gzip.finish().expect("memory")
    }

    // covers: A5a, B4d
    #[test]
    fn names_that_could_escape_and_entries_that_are_no_files_are_refused() {
        for bad in ["../a", "a/../b", "a//b", "a/.", "//a", "././a", "a\\b", "a\nb", "..", "/"] {
            let error = unpack(&tar_with(bad.as_bytes(), EntryType::Regular, false)).expect_err(bad);
            assert_eq!(error.reason(), "bad_entry", "{bad:?}");
        }
        assert_eq!(unpack(&tar_with(b"a\xff", EntryType::Regular, false)).map_err(|e| e.reason()), Err("bad_entry"));
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Fifo, EntryType::Char] {
            assert!(unpack(&tar_with(b"a", kind, false)).is_err(), "{kind:?}");
        }
        assert_eq!(unpack(&tar_with(b"a", EntryType::Regular, true)).map_err(|e| e.reason()), Err("duplicate_entry"));
        assert!(unpack(&tar_with(b"./a", EntryType::Regular, false)).is_ok_and(|files| files.contains_key("a")));
    }

    // covers: A5a, B4d
    #[test]
    fn bombs_and_cut_or_extended_files_are_refused() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        let block = vec![0; 1 << 20];
        for _ in 0..65 {
            gzip.write_all(&block).expect("memory");
        }
        let bomb = gzip.finish().expect("memory");
        assert!(bomb.len() < 1 << 20);
        assert_eq!(unpack(&bomb), Err(BundleError::TooLarge("64 MiB unpacked")));
        assert_eq!(unpack(&vec![0; MAX_COMPRESSED + 1]), Err(BundleError::TooLarge("16 MiB compressed")));
        let good = tar_with(b"a", EntryType::Regular, false);
        for cut in [0, 1, good.len() / 2, good.len() - 1] {
            assert_eq!(unpack(&good[..cut]).map_err(|e| e.reason()), Err("bad_archive"), "{cut}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(unpack(&longer).map_err(|e| e.reason()), Err("bad_archive"));
    }

    #[test]
    fn packing_is_deterministic_and_reads_back() {
        let files = BTreeMap::from([("a/b".to_owned(), b"x".to_vec()), (".c".to_owned(), Vec::new())]);
        let packed = pack(&files).expect("memory");
        assert_eq!(packed, pack(&files).expect("memory"));
        assert_eq!(unpack(&packed), Ok(files));
    }
}
