use std::net::{IpAddr, Ipv4Addr};

use super::*;

fn addr(port: u16) -> Addr {
    Addr::new((IpAddr::V4(Ipv4Addr::LOCALHOST), port).into())
}

/// A meter that knows one peer, and what it counts for.
fn metered(words: &str) -> (Arc<Usage>, Box<dyn Meter>) {
    let usage = Usage::new();
    let mut meter = usage.meter();
    meter.path(&addr(1), "shm", words.into());
    (usage, meter)
}

#[test]
fn the_first_line_answers() {
    let (usage, mut meter) = metered("shm 508 KiB ring, cma (process_vm_readv) with pid 17");
    for _ in 0..3 {
        assert!(meter.count(&addr(1), Side::Ours, How::Eager, 8));
    }
    assert!(meter.count(&addr(1), Side::Theirs, How::Direct, 3 << 20));
    let report = usage.report().unwrap();
    let text = report.to_text("pid 5");
    let first = text.lines().next().unwrap();
    assert_eq!(first, "strait: pid 5: carried 3 messages, 24 B to 1 peer; 1 messages, 3.0 MiB came");
    assert!(text.contains("1 of 1 peer: shm 508 KiB ring, cma (process_vm_readv)\n"), "{text}");
    assert!(text.lines().any(|l| l.contains("direct copy") && l.contains("3.0 MiB")), "{text}");
    assert!(!text.contains("fell back") && !text.contains("frames"), "{text}");
    // What other processes see is the same.
    let sums = usage.page.as_ref().map(|_| find_own_page()).unwrap();
    assert!(
        sums.iter().any(|s| s.peers == 1 && s.counts[0][0] == Counts { messages: 3, bytes: 24 }),
        "{sums:?}"
    );
}

/// The pages of this process, as another one finds them.
fn find_own_page() -> Vec<Sums> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|e| e.path());
    let pages = fds.filter(|p| std::fs::read_link(p).is_ok_and(|l| is_page(&l.to_string_lossy())));
    pages.filter_map(|p| read(&std::fs::File::open(p).ok()?)).collect()
}

#[test]
fn what_a_forked_child_opens_does_not_count_for_its_parent() {
    let (usage, mut meter) = metered("shm");
    assert!(meter.count(&addr(1), Side::Ours, How::Eager, 8));
    // SAFETY: the child counts, by a lock that no other thread has, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let counted = usage.meter().count(&addr(1), Side::Ours, How::Eager, 100);
        // SAFETY: nothing of this process is run any more.
        unsafe { libc::_exit(i32::from(!counted)) };
    }
    let mut status = 0;
    // SAFETY: a child of ours, and a place for what became of it.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let all = find_own_page();
    let shows = |messages, bytes| all.iter().any(|s| s.counts[0][0] == Counts { messages, bytes });
    assert!(shows(1, 8) && !shows(2, 108), "{all:?}");
}

#[test]
fn what_fell_back_is_reported_with_its_reason() {
    let (usage, mut meter) = metered("shm 508 KiB ring, frames only: \"ptrace_scope\" is 2");
    assert!(meter.count(&addr(1), Side::Ours, How::Frames, 1 << 20));
    meter.fell_back(&addr(1), Fallback::Memory);
    let report = usage.report().unwrap();
    assert_eq!(report.fell_back.len(), 2, "{report:?}");
    let text = report.to_text("x");
    assert!(text.contains("fell back: frames alone to 1 of 1 peers: \"ptrace_scope\" is 2\n"), "{text}");
    let json = report.to_json(&[("pid", "7".into())]);
    assert!(json.starts_with("{\"pid\":7,\"endpoints\":1,\"peers\":1,"), "{json}");
    assert!(json.contains("\\\"ptrace_scope\\\" is 2\""), "{json}");
    assert!(json.ends_with("]}\n") && json.lines().count() == 1);
}

#[test]
fn a_peer_is_asked_about_before_it_counts() {
    let usage = Usage::new();
    let mut meter = usage.meter();
    assert!(!meter.count(&addr(1), Side::Ours, How::Eager, 8));
    assert_eq!(usage.report().unwrap().sums(), [Counts::default(); 2]);
    assert!(usage.report().unwrap().to_text("x").contains("carried 0 messages"));
    assert!(Usage::new().report().unwrap().to_text("x").contains("no endpoint was opened"));
}

#[test]
fn peers_beyond_the_most_are_counted_all_the_same() {
    let usage = Usage::new();
    let mut meter = usage.meter();
    for port in 0..=MOST as u16 + 5 {
        meter.path(&addr(port), "shm", "x".into());
        assert!(meter.count(&addr(port), Side::Ours, How::Eager, 1));
    }
    let report = usage.report().unwrap();
    assert_eq!((report.peers, report.sums()[0].messages), (MOST, MOST as u64 + 6));
}

#[test]
fn another_link_has_a_row_of_its_own() {
    let usage = Usage::new();
    let mut meter = usage.meter();
    meter.path(&addr(1), "tcp", "tcp to 10.0.0.2".into());
    assert!(meter.count(&addr(1), Side::Ours, How::Eager, 8));
    // What is said when its channel is gone does not replace what was known.
    meter.path(&addr(1), "shm", "shm 124 KiB ring, not connected".into());
    let report = usage.report().unwrap();
    assert_eq!(report.ways.iter().map(|w| w.name).collect::<Vec<_>>(), ["network"]);
    assert_eq!(report.paths[0].words, "tcp to 10.0.0.2");
}

#[test]
fn rma_of_a_provider_below_is_counted_apart_from_its_frames() {
    let usage = Usage::new();
    let mut meter = usage.meter();
    meter.path(&addr(1), "ofi", "ofi verbs;ofi_rxm".into());
    for how in [How::Eager, How::Frames] {
        assert!(meter.count(&addr(1), Side::Ours, how, 8));
    }
    assert!(meter.count(&addr(1), Side::Theirs, How::Device, 65536));
    let ways = usage.report().unwrap().ways;
    assert_eq!(ways.iter().map(|w| w.name).collect::<Vec<_>>(), ["network", "network RMA"]);
    assert_eq!(ways[0].ours, Counts { messages: 2, bytes: 16 });
    assert_eq!(ways[1].theirs, Counts { messages: 1, bytes: 65536 });
}
