//! Which host this is, for other processes and for people.

use std::ffi::CStr;

/// The id of the host's boot, as text; empty if /proc does not say.
pub fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

/// The same in 16 bytes; zeros if /proc does not say.
pub fn boot() -> [u8; 16] {
    let digits: Vec<u8> = boot_id().chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut out = [0; 16];
    for (to, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *to = pair[0] << 4 | pair[1];
    }
    out
}

/// The host's name; empty if it has none.
pub fn name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: `name` is a valid place of its length.
    let done = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let name = CStr::from_bytes_until_nul(&name).ok().filter(|_| done == 0);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_the_same_as_text_and_in_bytes() {
        let text: String = boot().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, boot_id().replace('-', ""));
        assert_ne!(boot(), [0; 16], "no /proc");
        assert!(!name().is_empty() && !name().contains('\n'));
    }
}
