//! As much of ELF as an image needs: is a program static, and which libraries does `ldd` name.

/// `PT_INTERP` of the program header table.
const PT_INTERP: u32 = 3;

/// Whether a 64-bit little-endian ELF file asks for a loader. What is not such a file counts as dynamic.
pub(super) fn is_dynamic(file: &[u8]) -> bool {
    has_interpreter(file).unwrap_or(true)
}

/// The absolute paths in the output of `ldd`.
pub(super) fn libraries(ldd: &str) -> Vec<String> {
    let paths = ldd.lines().filter_map(|line| {
        let path = line.rsplit("=>").next()?.trim();
        let (path, _) = path.split_once(" (")?;
        path.starts_with('/').then(|| path.to_owned())
    });
    paths.collect()
}

fn has_interpreter(file: &[u8]) -> Option<bool> {
    if file.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let table = usize::try_from(u64::from_le_bytes(file.get(32..40)?.try_into().ok()?)).ok()?;
    let entry = usize::from(u16::from_le_bytes(file.get(54..56)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(file.get(56..58)?.try_into().ok()?));
    for number in 0..count {
        let at = table.checked_add(number.checked_mul(entry)?)?;
        let kind = u32::from_le_bytes(file.get(at..at.checked_add(4)?)?.try_into().ok()?);
        if kind == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: A3
    #[test]
    fn a_test_program_is_dynamic_and_so_is_what_is_no_program() {
        assert!(is_dynamic(&std::fs::read("/proc/self/exe").expect("our own program")));
        assert!(is_dynamic(b"#!/bin/sh"));
        assert!(is_dynamic(b"\x7fELF\x02\x01"));
    }

    // covers: A3
    #[test]
    fn libraries_come_with_the_loader_and_without_the_vdso() {
        let ldd = "\tlinux-vdso.so.1 (0x7f)\n\tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(libraries(ldd), ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"]);
    }
}
