//! What a peer does wrong has a few lines in the log, however often it does it and whatever it calls itself.
//! By itself, since it has the log of its process.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use testkit::*;

struct Lines(AtomicUsize);

static LINES: Lines = Lines(AtomicUsize::new(0));

impl log::Log for Lines {
    fn enabled(&self, of: &log::Metadata<'_>) -> bool {
        of.level() <= log::Level::Warn
    }

    fn log(&self, line: &log::Record<'_>) {
        if self.enabled(line.metadata()) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn flush(&self) {}
}

#[test]
fn the_log_has_a_few_lines_of_a_peer_and_of_all_of_them() {
    log::set_logger(&LINES).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let mut net = Net::new(6);
    let nonsense = |net: &mut Net, from: usize, n: usize| {
        for _ in 0..n {
            net.inject(from, 0, vec![0xee; 40]);
            net[0].progress();
        }
        LINES.0.swap(0, SeqCst)
    };
    // Eight, and then at 16, 32 and so on.
    assert_eq!(nonsense(&mut net, 1, 10_000), 8 + 10);
    // Another one has its own.
    assert_eq!(nonsense(&mut net, 2, 8), 8);
    let mut lines = 0;
    for from in (1..6).cycle().take(200) {
        net.kill(from);
        net.settle();
        net.revive(from);
        lines += nonsense(&mut net, from, 100);
    }
    assert!(lines < 100, "{lines} of 20 000");
}
