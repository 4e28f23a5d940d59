//! Host memory of tests in which a provider below accesses it.

use hmem::Span;
use testkit::pattern;

/// Far more than sockets keep.
pub const LEN: usize = 64 << 20;
const PAGE: usize = 4096;

/// Memory that holds zeros.
pub fn room(len: usize) -> Span {
    Span::leak(len)
}

/// Memory that holds a pattern.
pub fn filled(len: usize, seed: usize) -> Span {
    let span = room(len);
    hmem::write(&[span], 0, &pattern(len, seed));
    span
}

/// Whole pages, of these bytes.
pub fn pages(byte: u8) -> Span {
    let all = Span::leak(LEN + PAGE);
    let span = all.part(all.addr().next_multiple_of(PAGE as u64) as usize - all.addr() as usize, LEN);
    let span = span.expect("inside of it");
    hmem::write(&[span], 0, &vec![byte; LEN]);
    span
}

/// Nothing in this process may touch it any more.
pub fn forbid(span: Span) {
    // SAFETY: whole pages of memory that was leaked, and that nothing here uses again.
    let code = unsafe { libc::mprotect(span.as_ptr().cast(), span.len(), libc::PROT_NONE) };
    assert_eq!(code, 0, "mprotect(2)");
}
