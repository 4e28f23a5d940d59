//! Reading and writing a peer's memory with process_vm_readv(2): one copy, no help from the peer.

use std::hint::black_box;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use link_api::{Direct, NoDirect, Way};

use crate::space::Target;

/// Most parts of either side per call; the kernel's limit (IOV_MAX) is 1024.
const PARTS: usize = 64;

/// Most bytes per call, below what the kernel cuts a call to (2 GiB).
const CHUNK: usize = 1 << 30;

/// Why bytes could not be moved.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The kernel does not allow it, and will not.
    Forbidden(io::Error),
    /// Not with this memory: it is a device's, or not mapped, or of a sort that the call cannot reach.
    Memory,
    /// The address space is gone.
    Gone,
}

impl From<Fault> for NoDirect {
    fn from(f: Fault) -> NoDirect {
        match f {
            Fault::Forbidden(_) => NoDirect::Never,
            Fault::Memory => NoDirect::Memory,
            Fault::Gone => NoDirect::Fault,
        }
    }
}

/// Finds out whether the target's id still leads to its address space.
pub(crate) fn verify(target: &Target) -> Result<(), Fault> {
    call_guarded(Way::Get, target, &[], &[]).map(drop)
}

/// Moves bytes between an address space and here; whether that is allowed the caller knows.
pub(crate) fn transfer(way: Way, target: &Target, access: &Direct<'_>) -> Result<(), Fault> {
    let Direct { grant: _, remote, roff, local, loff, len } = *access;
    if !hmem::can(local, hmem::Caps::CMA) {
        return Err(Fault::Memory);
    }
    if let ([ours], [theirs]) = (local, remote) {
        // One piece each, all inside: what nearly every transfer is.
        let end = roff
            .checked_add(len)
            .and_then(|end| u64::try_from(end).ok())
            .filter(|end| *end <= theirs.len.get());
        if let (Some(part), Some(_), 1..=CHUNK) = (ours.part(loff, len), end, len) {
            let here = libc::iovec { iov_base: part.as_ptr().cast(), iov_len: len };
            let base = std::ptr::without_provenance_mut((theirs.addr.get() as usize).wrapping_add(roff));
            let there = libc::iovec { iov_base: base, iov_len: len };
            if call(way, target, &[here], &[there])? == len {
                return Ok(());
            }
            // Cut short: whatever that was, the loop finds it.
        }
    }
    let mut done = 0;
    while done < len {
        let want = (len - done).min(CHUNK);
        let mut here = [NOTHING; PARTS];
        let mut there = here;
        let ours = local.iter().map(|s| (s.as_ptr().cast(), s.len() as u64));
        let theirs =
            remote.iter().map(|s| (std::ptr::without_provenance_mut(s.addr.get() as usize), s.len.get()));
        let (n_here, got_here) = cut(ours, (loff as u64).saturating_add(done as u64), want, &mut here);
        let (n_there, got_there) = cut(theirs, (roff as u64).saturating_add(done as u64), want, &mut there);
        let ask = got_here.min(got_there);
        if ask == 0 {
            // One side is shorter than `len` says.
            return Err(Fault::Memory);
        }
        let n_here = trim(&mut here[..n_here], ask);
        let n_there = trim(&mut there[..n_there], ask);
        match call(way, target, &here[..n_here], &there[..n_there])? {
            0 => return Err(Fault::Memory),
            n => done += n,
        }
    }
    Ok(())
}

const NOTHING: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// One system call; how many bytes it moved. `here` are parts of spans.
#[inline]
fn call(way: Way, target: &Target, here: &[libc::iovec], there: &[libc::iovec]) -> Result<usize, Fault> {
    if target.guarded {
        return call_guarded(way, target, here, there);
    }
    vm_call(way, target.id, here, there).map_err(|e| fault(e, Fault::Memory))
}

/// The call for a guarded address space: the guard is named first.
#[cold]
fn call_guarded(
    way: Way,
    target: &Target,
    here: &[libc::iovec],
    there: &[libc::iovec],
) -> Result<usize, Fault> {
    const WORD: usize = size_of::<u64>();
    let mut word = [0u8; WORD];
    let at = match way {
        Way::Get => target.token_at(),
        Way::Put => target.word_at(),
    };
    let guard = std::ptr::without_provenance_mut(at as usize);
    let (mut ours, mut theirs) = ([NOTHING; PARTS + 1], [NOTHING; PARTS + 1]);
    ours[0] = libc::iovec { iov_base: word.as_mut_ptr().cast(), iov_len: WORD };
    theirs[0] = libc::iovec { iov_base: guard, iov_len: WORD };
    ours[1..=here.len()].copy_from_slice(here);
    theirs[1..=there.len()].copy_from_slice(there);
    // An address that is not mapped in the first place: the guard's.
    let n = vm_call(way, target.id, &ours[..=here.len()], &theirs[..=there.len()])
        .map_err(|e| fault(e, Fault::Gone))?;
    match n.checked_sub(WORD) {
        Some(n) if way == Way::Put || target.has_token(word) => Ok(n),
        _ => Err(Fault::Gone),
    }
}

/// Whether there is a process of that pid.
pub(crate) fn lives(pid: i32) -> bool {
    // SAFETY: kill(2) with signal 0 sends none.
    unsafe { libc::kill(pid, 0) == 0 }
}

/// What an error of the call means; `bad`: that an address is not mapped.
#[cold]
fn fault(e: io::Error, bad: Fault) -> Fault {
    match e.raw_os_error() {
        Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => Fault::Forbidden(e),
        Some(libc::ESRCH) => Fault::Gone,
        Some(libc::EFAULT) => bad,
        _ => Fault::Memory,
    }
}

/// The call itself.
#[inline]
fn vm_call(way: Way, id: i32, here: &[libc::iovec], there: &[libc::iovec]) -> io::Result<usize> {
    let call = match way {
        Way::Get => libc::process_vm_readv,
        Way::Put => libc::process_vm_writev,
    };
    // SAFETY: `here` holds parts of spans, which are valid for the access by `Span`'s invariant, or a word of
    // the caller's; the kernel checks `there` in the other address space and answers EFAULT.
    let n = unsafe { call(id, here.as_ptr(), here.len() as u64, there.as_ptr(), there.len() as u64, 0) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Writes the parts of `iov` that make up `off..off+len` to `out`; returns how many parts and bytes
/// found room there.
fn cut(
    iov: impl Iterator<Item = (*mut libc::c_void, u64)>,
    mut off: u64,
    len: usize,
    out: &mut [libc::iovec],
) -> (usize, usize) {
    let (mut parts, mut bytes) = (0, 0);
    for (base, size) in iov {
        if off >= size {
            off -= size;
            continue;
        }
        if parts == out.len() || bytes == len {
            break;
        }
        let n = (size - off).min((len - bytes) as u64) as usize;
        out[parts] = libc::iovec { iov_base: base.wrapping_byte_add(off as usize), iov_len: n };
        parts += 1;
        bytes += n;
        off = 0;
    }
    (parts, bytes)
}

/// Cuts the parts to `len` bytes together; returns how many are left.
fn trim(parts: &mut [libc::iovec], len: usize) -> usize {
    let mut left = len;
    for (i, p) in parts.iter_mut().enumerate() {
        if left == 0 {
            return i;
        }
        p.iov_len = p.iov_len.min(left);
        left -= p.iov_len;
    }
    parts.len()
}

/// Whether this process may read the memory of others of its user: a line of what is known, or in
/// `Err` why not.
pub fn cma_allowed() -> Result<String, String> {
    let (from, to) = (*b"strait", [0u8; 6]);
    let here = libc::iovec { iov_base: (&raw const to).cast_mut().cast(), iov_len: 6 };
    let there = libc::iovec { iov_base: (&raw const from).cast_mut().cast(), iov_len: 6 };
    let mut place = to;
    let here = libc::iovec { iov_base: place.as_mut_ptr().cast(), ..here };
    // SAFETY: both parts are local arrays of 6 bytes, `place` being exclusively ours.
    let n = unsafe { libc::process_vm_readv(std::process::id() as i32, &here, 1, &there, 1, 0) };
    if n != 6 || place != from {
        return Err(why_not(&io::Error::last_os_error()));
    }
    match yama() {
        None | Some(0) => Ok("process_vm_readv works; any process of the same user".into()),
        Some(scope) => {
            if capable_ptrace() {
                Ok(format!("process_vm_readv works; yama ptrace_scope={scope}, but CAP_SYS_PTRACE is held"))
            } else {
                Err(format!(
                    "yama ptrace_scope={scope} (/proc/sys/kernel/yama/ptrace_scope): processes that are \
                     not parent and child may not read each other's memory"
                ))
            }
        }
    }
}

const PAGE: usize = 4096;

/// The sizes that [`eager_size`] chooses from.
const EAGER: [usize; 4] = [PAGE, 2 * PAGE, 4 * PAGE, 8 * PAGE];

/// Bytes up to which a message is better copied through the ring than by this call, as far as a few copies
/// within this process show: see [`eager_by`].
pub fn eager_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // One behind the other, so that both begin at the same place of a page.
        let mut bytes = vec![1u8; 2 * EAGER[3]];
        let (to, from) = bytes.split_at_mut(EAGER[3]);
        let pid = std::process::id() as i32;
        eager_by(|len| {
            let by_call = least(|| {
                let here = [libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: len }];
                let there = [libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: len }];
                let begin = Instant::now();
                vm_call(Way::Get, pid, &here, &there).ok()?;
                Some(begin.elapsed())
            })?;
            let by_cpu = least(|| {
                let begin = Instant::now();
                black_box(&mut to[..len]).copy_from_slice(black_box(&from[..len]));
                Some(begin.elapsed())
            })?;
            Some((by_call, by_cpu))
        })
    })
}

/// The least of a few times: the others were disturbed.
fn least(once: impl FnMut() -> Option<Duration>) -> Option<Duration> {
    std::iter::repeat_with(once).take(12).flatten().min()
}

/// The greatest of [`EAGER`] of which no less one is better copied by the call, by the time that a copy by
/// the call and one by the processor take.
///
/// Through the ring there are two copies, one after the other, of lines that the other core has: together up
/// to eight times what one of lines at hand takes. By the call there is one, and half a microsecond of frames
/// that say where and when. Measured on three machines, a page by the call and 16 KiB by the processor: 0.4
/// us, where from 4 KiB on the call is quicker; 0.7 to 1 us, where at 8 KiB they are even; 2.2 us and 0.4 us,
/// where up to 48 KiB the ring takes a third to a half of the call's time.
fn eager_by(mut times: impl FnMut(usize) -> Option<(Duration, Duration)>) -> usize {
    const FRAMES: Duration = Duration::from_nanos(500);
    const QUICK: Duration = Duration::from_nanos(700);
    let Some((page, _)) = times(PAGE) else { return 2 * PAGE };
    if page < QUICK {
        return PAGE;
    }
    let by_ring = |len: &&usize| times(**len).is_some_and(|(by_call, by_cpu)| 8 * by_cpu <= by_call + FRAMES);
    EAGER[2..].iter().take_while(by_ring).last().copied().unwrap_or(2 * PAGE)
}

/// Bytes up to which many messages in a row are, or messages both ways: two copies at the same time on two
/// cores outdo the call's one copy (measured on the same machines).
pub fn eager_in_a_row() -> usize {
    eager_size().max(4 * PAGE)
}

/// Bytes up to which messages are that go one way to few peers: their sender copies the next one, or
/// receives, while the receiver copies this one. Measured with 32 KiB and 60000 bytes, which gained no more.
pub fn eager_one_way() -> usize {
    eager_in_a_row().max(8 * PAGE)
}

/// Why access is refused, for the log.
pub(crate) fn why_not(e: &io::Error) -> String {
    let hint = match (e.raw_os_error(), yama()) {
        (Some(libc::ENOSYS), _) => "not in this kernel, or blocked by a seccomp filter (container?)".into(),
        (_, Some(scope)) if scope > 0 && !capable_ptrace() => format!("yama ptrace_scope={scope}"),
        _ => {
            let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
            refused_by(&read("/proc/self/uid_map"), &read("/proc/self/status")).into()
        }
    };
    let name = match e.raw_os_error() {
        Some(libc::EPERM) => "EPERM".to_owned(),
        Some(libc::ENOSYS) => "ENOSYS".to_owned(),
        _ => e.to_string(),
    };
    format!("process_vm_readv refused: {name} ({hint})")
}

/// What may refuse access to a peer of the same user, by the user namespace and the seccomp mode of this
/// process. Of the peer neither can be read where access is refused.
fn refused_by(uid_map: &str, status: &str) -> &'static str {
    let has_filter =
        status.lines().any(|l| l.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    let is_first = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    match (has_filter, is_first) {
        (true, true) => {
            "a seccomp filter (container?), or the peer is not dumpable or has more capabilities than this process"
        }
        (true, false) => {
            "a seccomp filter (container?), or the peer is in another user namespace (container)"
        }
        (false, false) => "the peer is in another user namespace (container), or not dumpable",
        (false, true) => {
            "the peer is in another user namespace (container), is not dumpable, or has more capabilities than this process"
        }
    }
}

fn yama() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok()?.trim().parse().ok()
}

fn capable_ptrace() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .and_then(|v| u64::from_str_radix(v.trim(), 16).ok())
        .is_some_and(|caps| caps >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use hmem::Span;
    use link_api::Grant;
    use wire::Seg;

    use super::*;
    use crate::space;

    fn seg(s: Span) -> Seg {
        Seg { addr: s.addr().into(), len: (s.len() as u64).into() }
    }

    #[test]
    fn a_refusal_names_what_this_process_has_of_a_container() {
        let (first, own) = ("         0          0 4294967295\n", "         0       1000          1\n");
        let (free, filtered) = ("Name:\tx\nSeccomp:\t0\n", "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n");
        assert!(refused_by(first, filtered).starts_with("a seccomp filter"));
        assert!(!refused_by(first, free).contains("seccomp"));
        assert!(refused_by(own, free).starts_with("the peer is in another user namespace"));
        let both = refused_by(own, filtered);
        assert!(both.starts_with("a seccomp filter") && both.contains("user namespace"), "{both}");
        assert!(refused_by(first, free).contains("capabilities"));
    }

    /// An access that is allowed.
    fn by<'a>(remote: &'a [Seg], local: &'a [Span], len: usize) -> Direct<'a> {
        Direct::new(Grant::Agreed, remote, local, len)
    }

    #[test]
    fn a_transfer_of_more_parts_than_a_call_takes_is_complete() {
        let own = own();
        let remote: Vec<Span> = (0..300).map(|i| Span::leak(i % 7)).collect();
        let local: Vec<Span> = (0..100).map(|_| Span::leak(9)).collect();
        let total = hmem::total(&remote);
        let text: Vec<u8> = (0..total).map(|i| (i * 31) as u8).collect();
        hmem::write(&remote, 0, &text);
        let segs: Vec<Seg> = remote.iter().map(|s| seg(*s)).collect();
        transfer(Way::Get, &own, &by(&segs, &local, total - 5).at(5, 3)).unwrap();
        let mut back = vec![0; total - 5];
        hmem::read(&local, 3, &mut back);
        assert!(back == text[5..]);
        hmem::write(&local, 3, &[7; 40]);
        transfer(Way::Put, &own, &by(&segs, &local, 40).at(50, 3)).unwrap();
        let mut back = vec![0; total];
        hmem::read(&remote, 0, &mut back);
        assert!(back[..50] == text[..50] && back[50..90] == [7; 40] && back[90..] == text[90..]);
    }

    #[test]
    fn the_eager_size_is_one_of_few_and_stays() {
        let size = eager_size();
        assert!(EAGER.contains(&size), "{size}");
        assert!((0..100).all(|_| eager_size() == size));
        assert!(eager_in_a_row() >= size.max(4 * PAGE) && eager_one_way() >= eager_in_a_row());
    }

    #[test]
    fn a_slow_call_and_a_quick_processor_make_longer_messages_eager() {
        // Nanoseconds by the call, and by the processor, of 4, 8, 16 and 32 KiB.
        let by = |call: [u64; 4], cpu: [u64; 4]| {
            eager_by(|len| {
                let at = EAGER.iter().position(|of| *of == len)?;
                Some((Duration::from_nanos(call[at]), Duration::from_nanos(cpu[at])))
            })
        };
        let cpu = [100, 170, 390, 730];
        assert_eq!(by([400, 600, 1000, 1900], cpu), 4096);
        assert_eq!(by([1000, 1300, 2000, 3000], cpu), 8192);
        assert_eq!(by([2240, 2680, 3410, 5290], cpu), 16384);
        assert_eq!(by([2240, 2680, 3410, 5400], cpu), 32768);
        // A longer one is not asked for where a shorter one is quicker by the call.
        assert_eq!(by([2240, 2680, 2000, 5400], cpu), 8192);
        assert_eq!(by([2240, 2680, 3410, 5400], [100, 170, 4000, 730]), 8192);
        assert_eq!(eager_by(|_| None), 8192);
    }

    /// This process, by its keeper.
    fn own() -> Target {
        Target::new(std::process::id() as i32, space::own().unwrap())
    }

    #[test]
    fn an_address_that_is_not_mapped_is_a_fault() {
        let local = [Span::leak(8)];
        let bad = [Seg { addr: 16.into(), len: 8.into() }];
        let high = [Seg { addr: u64::MAX.into(), len: u64::MAX.into() }];
        let good = [seg(Span::leak(8))];
        for target in [own(), Target { guarded: true, id: std::process::id() as i32, ..own() }] {
            let get =
                |segs: &[Seg], roff, loff| transfer(Way::Get, &target, &by(segs, &local, 8).at(roff, loff));
            assert!(matches!(get(&bad, 0, 0), Err(Fault::Memory)));
            assert!(matches!(
                transfer(Way::Put, &target, &by(&high, &local, 8).at(9, 0)),
                Err(Fault::Memory)
            ));
            assert!(matches!(get(&good, 0, 4), Err(Fault::Memory)));
            assert!(matches!(get(&good, usize::MAX, 0), Err(Fault::Memory)));
            get(&good, 0, 0).unwrap();
            transfer(Way::Get, &target, &by(&good, &local, 0).at(8, 8)).unwrap();
            let gone = Target { id: i32::MAX, ..target };
            assert!(matches!(transfer(Way::Get, &gone, &by(&good, &local, 8)), Err(Fault::Gone)));
            assert!(matches!(verify(&gone), Err(Fault::Gone)));
            verify(&target).unwrap();
        }
    }

    /// Another address space under the same id: neither is read nor written.
    #[test]
    fn a_target_of_another_address_space_is_not_accessed() {
        let memory = Span::leak(8);
        hmem::write(&[memory], 0, &[1; 8]);
        let local = [Span::leak(8)];
        let (there, pid) = ([seg(memory)], std::process::id() as i32);
        let mut own = space::own().unwrap();
        // Another token; a guard that is not mapped.
        for (token, guard) in [(1 << 62, 0), (0, 1 << 14)] {
            own.token ^= token;
            own.guard ^= guard;
            let other = Target::new(pid, own);
            let guarded = Target { guarded: true, ..other };
            assert!(matches!(verify(&other), Err(Fault::Gone)));
            assert!(matches!(transfer(Way::Get, &guarded, &by(&there, &local, 8)), Err(Fault::Gone)));
        }
        let other = Target { guarded: true, ..Target::new(pid, own) };
        assert!(matches!(transfer(Way::Put, &other, &by(&there, &local, 8)), Err(Fault::Gone)));
        let mut now = [0; 8];
        hmem::read(&[memory], 0, &mut now);
        assert_eq!(now, [1; 8], "written");
    }
}
