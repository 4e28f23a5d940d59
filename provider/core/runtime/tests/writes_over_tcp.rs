//! Short writes over TCP that a link keeps back are sent, though the application makes no further call.

mod common;

use common::{Node, patient};
use engine::{Access, Reg};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{SleepLink as _, WaitFd};
use runtime::Progress;
use testkit::{pattern, there, write};
use wire::session::JobKey;

/// Bytes of a write, and how many: the last ones are kept back.
const LEN: usize = 8;
const WRITES: usize = 33;
const KEY: u64 = 5;

fn node(progress: Progress) -> Node<TcpLink> {
    let mut options = TcpOptions::new(JobKey::from_secret(b"of writes"));
    options.gathers = true;
    let link = TcpLink::bind(([127, 0, 0, 1], 0).into(), options).unwrap();
    let fd = link.wait_fd(WaitFd::All).unwrap();
    Node::new(link, fd, progress)
}

#[test]
fn with_a_progress_thread_all_writes_leave_though_the_application_makes_no_further_call() {
    let (initiator, target) = (node(Progress::Auto), node(Progress::Manual));
    let to = initiator.knows(target.addr);
    let memory = Span::leak(WRITES * LEN);
    let reg = Reg { iov: &[memory], access: Access::REMOTE_WRITE, key: Some(KEY) };
    target.runtime.lock().mr_reg(&reg).unwrap();
    for round in 0..20 {
        let bytes = pattern(WRITES * LEN, round + 1);
        let mut posted = 0;
        patient(|| {
            target.poll();
            while posted < WRITES {
                let src = Span::leak(LEN);
                hmem::write(&[src], 0, &bytes[posted * LEN..][..LEN]);
                let remote = [there((posted * LEN) as u64, LEN, KEY)];
                let mut engine = initiator.runtime.lock();
                if engine.rma(initiator.ep, &write(to, &[src], &remote, posted)).is_err() {
                    return None;
                }
                posted += 1;
            }
            Some(())
        });
        // No call of the initiator's.
        patient(|| {
            target.poll();
            let mut there = vec![0; bytes.len()];
            hmem::read(&[memory], 0, &mut there);
            (there == bytes).then_some(())
        });
        let mut done = 0;
        patient(|| {
            target.poll();
            while let Some(completion) = initiator.poll() {
                assert_eq!(completion.err, None);
                done += 1;
            }
            (done == WRITES).then_some(())
        });
    }
}
