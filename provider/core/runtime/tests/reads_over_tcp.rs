//! Reads over TCP: what the peer sends goes into place as it comes.

mod common;

use common::{Node, patient};
use engine::{Access, Error, Reg};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{SleepLink as _, WaitFd};
use runtime::Progress;
use testkit::{pattern, read, there};
use wire::session::JobKey;

/// Bytes of a read, which come in one frame, and how many reads: more than the kernel keeps.
const LEN: usize = 200_000;
const READS: usize = 100;

fn node() -> Node<TcpLink> {
    let options = TcpOptions::new(JobKey::from_secret(b"of reads"));
    let link = TcpLink::bind(([127, 0, 0, 1], 0).into(), options).unwrap();
    let fd = link.wait_fd(WaitFd::All).unwrap();
    Node::new(link, fd, Progress::Manual)
}

/// Whether this byte of a read is there: none is 0.
fn has(room: Span, at: usize) -> bool {
    let mut byte = [0];
    assert_eq!(hmem::read(&[room], at, &mut byte), 1);
    byte[0] != 0
}

#[test]
fn a_read_has_the_front_of_a_frame_before_all_of_it_is_sent() {
    let [initiator, target] = [node(), node()];
    let to = initiator.knows(target.addr);
    let bytes: Vec<u8> = pattern(LEN, 1).into_iter().map(|byte| byte | 1).collect();
    let memory = Span::leak(LEN);
    hmem::write(&[memory], 0, &bytes);
    let reg = Reg { iov: &[memory], access: Access::REMOTE_READ, key: Some(5) };
    target.runtime.lock().mr_reg(&reg).unwrap();
    let rooms = [(); READS].map(|()| Span::leak(LEN));
    let (mut posted, mut done, mut parts) = (0, 0, 0);
    patient(|| {
        while let Some(room) = rooms.get(posted) {
            let remote = [there(0, LEN, 5)];
            match initiator.runtime.lock().rma(initiator.ep, &read(to, &[*room], &remote, posted)) {
                Ok(()) => posted += 1,
                Err(Error::Again) => break,
                Err(e) => panic!("{e:?}"),
            }
        }
        // The target sends what the kernel takes, and the initiator receives all of that.
        target.poll();
        for _ in 0..8 {
            if let Some(completion) = initiator.poll() {
                assert_eq!(completion.err, None);
                done += 1;
            }
        }
        parts +=
            rooms[..posted].iter().filter(|room| has(**room, LEN / 100) && !has(**room, LEN - 1)).count();
        (done == READS).then_some(())
    });
    for room in rooms {
        let mut found = vec![0; LEN];
        hmem::read(&[room], 0, &mut found);
        assert!(found == bytes);
    }
    assert!(parts > 0, "no read had a part of its frame");
}
