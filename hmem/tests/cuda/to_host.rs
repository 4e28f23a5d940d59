//! Copies from a device to host memory that is not page-locked.

use hmem::pending::PendingCopies;

use super::*;

/// Bytes of a buffer, how many there are, and how many a copy has at most.
const STAGE: usize = 1 << 20;
const STAGES: usize = 8;
const EACH: usize = 3;

/// # Safety
/// As of [`hmem::pending::start`].
unsafe fn start(parts: &[Part]) -> Box<dyn PendingCopy> {
    let memory = registry::of(Kind::Cuda);
    // SAFETY: the caller's promise.
    unsafe { memory.start_to_host(parts, Vec::<Opened>::new()) }.unwrap()
}

fn until_over(flight: &mut dyn PendingCopy) -> usize {
    let mut polls = 1;
    while !flight.poll().unwrap() {
        polls += 1;
    }
    polls
}

#[test]
fn all_bytes_go_where_they_belong_and_no_others() {
    let (_alone, cu) = alone();
    let room = 10 << 20;
    let (a, text) = (cu.alloc(room), pattern(room, 5));
    cu.write(a, &text);
    for len in [1, 7, 4096, (256 << 10) - 1, (256 << 10) + 1, STAGE, 4 * STAGE + 5, 9 * STAGE + 77] {
        let mut host = vec![0u8; len + 10];
        let dst = host.as_mut_ptr().expose_provenance() + 5;
        // SAFETY: `host` outlives the copy.
        let mut flight = unsafe { start(&[Part { dst, src: a + 3, len }]) };
        let polls = until_over(&mut *flight);
        drop(flight);
        assert!(host[5..5 + len] == text[3..3 + len], "{len}");
        assert!(host[..5].iter().chain(&host[5 + len..]).all(|b| *b == 0), "{len}: outside");
        assert!(polls >= len / STAGE, "{len}: others get their turn");
    }
    // In parts, shorter and longer than a buffer, that come in no order.
    let mut host = vec![0u8; room];
    let dst = host.as_mut_ptr().expose_provenance();
    let lens = [1, 300_000, 0, 700_000, STAGE + 1, 5, 3 * STAGE, 348_576];
    let (mut parts, mut want, mut from) = (Vec::new(), vec![0u8; room], 11);
    for (n, len) in lens.into_iter().enumerate() {
        let to = room - from - len - n;
        parts.push(Part { dst: dst + to, src: a + from, len });
        want[to..to + len].copy_from_slice(&text[from..from + len]);
        from += len;
    }
    // SAFETY: `host` outlives the copy.
    until_over(&mut *unsafe { start(&parts) });
    assert!(host == want);
    cu.free(a);
}

#[test]
fn the_device_fills_buffers_while_the_processor_empties_one() {
    let (_alone, cu) = alone();
    let len = 16 * STAGE;
    let (a, mut host) = (cu.alloc(len), vec![0u8; len]);
    let dst = host.as_mut_ptr().expose_provenance();
    let before = cu.calls(c"cuMemcpyAsync");
    // SAFETY: `host` outlives the copy.
    let mut flight = unsafe { start(&[Part { dst, src: a, len }]) };
    let mut polls = 0;
    loop {
        let ahead = (polls + EACH).min(len / STAGE) as u64;
        assert_eq!(cu.calls(c"cuMemcpyAsync") - before, ahead, "after {polls} polls");
        polls += 1;
        if flight.poll().unwrap() {
            break;
        }
    }
    assert_eq!(polls, len / STAGE, "one buffer with each");
    cu.free(a);
}

#[test]
fn copies_share_the_buffers_in_whatever_order_they_are_asked_for() {
    let (_alone, cu) = alone();
    let (count, len) = (20, 5 * STAGE / 2);
    let (a, text) = (cu.alloc(len + count), pattern(len + count, 6));
    cu.write(a, &text);
    let locks = cu.calls(c"cuMemHostRegister_v2");
    let mut hosts: Vec<_> = (0..count).map(|_| vec![0u8; len]).collect();
    let mut all: Vec<_> = (hosts.iter_mut().enumerate())
        .map(|(n, host)| {
            let dst = host.as_mut_ptr().expose_provenance();
            // SAFETY: `hosts` outlive the copies.
            (n, unsafe { start(&[Part { dst, src: a + n, len }]) })
        })
        .collect();
    // Some are never over: what they hold comes back when they are dropped.
    let mut turn = 0usize;
    while all.len() > 4 {
        turn = turn.wrapping_mul(31) + 7;
        let at = turn % all.len();
        if all[at].1.poll().unwrap() {
            all.swap_remove(at);
        }
    }
    let left: Vec<_> = all.iter().map(|(n, _)| *n).collect();
    drop(all);
    for (n, host) in hosts.iter().enumerate().filter(|(n, _)| !left.contains(n)) {
        assert!(host[..] == text[n..n + len], "copy {n}");
    }
    assert!(cu.calls(c"cuMemHostRegister_v2") - locks <= STAGES as u64, "no more buffers than that");
    cu.free(a);
}

#[test]
fn who_never_asks_for_a_copy_keeps_no_other_from_its_end() {
    let (_alone, cu) = alone();
    let len = 6 * STAGE + 9;
    let (a, text) = (cu.alloc(len), pattern(len, 7));
    cu.write(a, &text);
    let mut hosts: Vec<_> = (0..STAGES).map(|_| vec![0u8; len]).collect();
    let mut one = |host: &mut Vec<u8>| {
        let dst = host.as_mut_ptr().expose_provenance();
        // SAFETY: `hosts` outlive the copies.
        unsafe { start(&[Part { dst, src: a, len }]) }
    };
    let (last, others) = hosts.split_last_mut().unwrap();
    let held: Vec<_> = others.iter_mut().map(&mut one).collect();
    until_over(&mut *one(last));
    assert!(*last == text);
    drop(held);
    last.fill(0);
    let polls = until_over(&mut *one(last));
    assert!(*last == text && polls < 10, "the buffers are back: {polls}");
    cu.free(a);
}

#[test]
fn what_fails_is_not_taken_for_done() {
    let (_alone, cu) = alone();
    let len = 5 * STAGE;
    let (a, text, mut host) = (cu.alloc(len), pattern(len, 8), vec![0u8; len]);
    cu.write(a, &text);
    let part = Part { dst: host.as_mut_ptr().expose_provenance(), src: a, len };
    for (name, nth) in [(c"cuMemcpyAsync", 2), (c"cuEventQuery", 1), (c"cuEventQuery", 3)] {
        // SAFETY: `host` outlives the copy.
        let mut flight = unsafe { start(&[part]) };
        cu.fail(name, nth, 700);
        let end = loop {
            match flight.poll() {
                Ok(false) => {}
                other => break other,
            }
        };
        cu.fail(name, 0, 0);
        assert_eq!(end.map_err(|e| e.code), Err(700), "{name:?}, {nth}");
    }
    cu.fail(c"cuMemcpyAsync", 2, 700);
    // SAFETY: as above.
    let refused = unsafe { registry::of(Kind::Cuda).start_to_host(&[part], Vec::new()) };
    assert_eq!(refused.err().map(|e| e.code), Some(700));
    cu.fail(c"cuMemcpyAsync", 0, 0);
    // SAFETY: as above.
    until_over(&mut *unsafe { start(&[part]) });
    assert!(host == text);
    cu.free(a);
}

#[test]
fn page_locked_memory_needs_no_buffers() {
    let (_alone, cu) = alone();
    let len = 3 * STAGE;
    let (a, text, host) = (cu.alloc(len), pattern(len, 9), cu.alloc_host(len));
    cu.write(a, &text);
    let before = cu.calls(c"cuMemcpyAsync");
    // SAFETY: the memory outlives the copy.
    assert_eq!(until_over(&mut *unsafe { start(&[Part { dst: host, src: a, len }]) }), 1);
    assert_eq!(cu.calls(c"cuMemcpyAsync") - before, 1);
    assert!(cu.read(host, len) == text);
    cu.free(host);
    cu.free(a);
}

/// To ask the driver takes as long as a short copy.
#[test]
fn of_many_short_copies_few_are_asked_for() {
    const MANY: usize = 6;
    let (_alone, cu) = alone();
    let len = 16 << 10;
    let text = pattern(MANY * len, 10);
    let (near, far) = (cu.alloc(MANY * len), cu.alloc(MANY * len));
    cu.write(far, &text);
    let mut host = vec![0u8; MANY * len];
    let to_host = host.as_mut_ptr().expose_provenance();
    for out in [false, true] {
        let mut all = PendingCopies::new();
        for n in 0..MANY {
            let at = n * len;
            // SAFETY: `text` and `host` outlive the copies.
            let flight = unsafe {
                match out {
                    false => super::start(&Part {
                        dst: near + at,
                        src: text.as_ptr().expose_provenance() + at,
                        len,
                    }),
                    true => start(&[Part { dst: to_host + at, src: far + at, len }]),
                }
            };
            all.add(n, flight);
        }
        let asked = cu.calls(c"cuEventQuery");
        let mut names = Vec::new();
        while !all.is_empty() {
            names.extend(all.over().or_else(|| all.poll_done().map(|(n, how)| how.map(|()| n).unwrap())));
        }
        names.sort_unstable();
        assert_eq!(names, (0..MANY).collect::<Vec<_>>());
        assert_eq!(cu.calls(c"cuEventQuery") - asked, 2, "to the host: {out}");
    }
    assert!(cu.read(near, MANY * len) == text && host == text);
    cu.free(near);
    cu.free(far);
}
