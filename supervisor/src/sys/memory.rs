//! Memory for secrets: pages of their own, which are no part of a core file, stay out of swap where the limit of locked memory
//! allows it, and are wiped before they go.

use std::io;
use std::ops::Deref;
use std::ptr::NonNull;

use nix::libc;
use zeroize::Zeroize;

/// Secret bytes. There is no `Debug`, `Display`, `Clone` or comparison: nothing can show them by accident.
pub struct SecretBytes {
    pages: NonNull<u8>,
    mapped: usize,
    len: usize,
    locked: bool,
}

// SAFETY: the pages belong to this value alone and are written only in `new` and `drop`, where nobody else has it.
unsafe impl Send for SecretBytes {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for SecretBytes {}

impl SecretBytes {
    /// Takes a copy; wiping the original is the caller's part.
    ///
    /// # Errors
    /// When the kernel has no memory.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        // The kernel rounds up to whole pages, here and below.
        let mapped = bytes.len().max(1);
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
        let pages = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if pages == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let pages = NonNull::new(pages.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: both calls name exactly the mapping that was just made. The kernel may refuse either, which loses the
        // protection and nothing else.
        let locked = unsafe {
            libc::madvise(pages.as_ptr().cast(), mapped, libc::MADV_DONTDUMP);
            libc::mlock(pages.as_ptr().cast(), mapped) == 0
        };
        // SAFETY: the mapping is writable, at least as long as `bytes`, and new, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pages.as_ptr(), bytes.len()) };
        Ok(Self { pages, mapped, len: bytes.len(), locked })
    }

    /// Whether the pages stay out of swap.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }
}

impl Deref for SecretBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the first `len` bytes were written in `new`, and the mapping lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr(), self.len) }
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        // SAFETY: `&mut self` is the only reference, so nobody reads the mapping; it is `mapped` bytes long, and was made by
        // `new` and given back nowhere else.
        unsafe {
            std::slice::from_raw_parts_mut(self.pages.as_ptr(), self.mapped).zeroize();
            libc::munmap(self.pages.as_ptr().cast(), self.mapped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // covers: D9j
    #[test]
    fn secrets_are_in_pages_that_no_core_file_has() {
        let secret = SecretBytes::new(b"hunter2").expect("memory");
        assert_eq!(&*secret, b"hunter2");
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        // Neighbours with the same flags are shown as one, so the range may start below.
        let at = secret.pages.as_ptr() as usize;
        let holds = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let parse = |text: &str| usize::from_str_radix(text, 16).ok();
            range.and_then(|(from, to)| Some(parse(from)? <= at && at < parse(to)?)).unwrap_or(false)
        };
        let flags = maps.lines().skip_while(|line| !holds(line)).find(|line| line.starts_with("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.contains(" dd")), "{flags:?}");
        assert!(!secret.is_locked() || flags.is_some_and(|flags| flags.contains(" lo")), "{flags:?}");
    }

    #[test]
    fn a_secret_may_be_empty_or_longer_than_a_page() {
        for len in [0, 1, 4096, 4097, 20_000] {
            let bytes: Vec<u8> = (0..len).map(|n| u8::try_from(n % 251).expect("small")).collect();
            assert_eq!(&*SecretBytes::new(&bytes).expect("memory"), bytes.as_slice());
        }
    }
}
