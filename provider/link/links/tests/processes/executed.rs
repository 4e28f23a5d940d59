//! Peers that execute another program while a process that they forked holds their sockets, and peers that
//! are slow.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use link::ShmLink;
use link_api::{Event, FrameLink as _, Gone, Link as _, PeerId, Refused, SleepLink as _};
use wire::Addr;

use crate::common::{closed, command, finish, frame, open, say, wait};

/// Listens and does not poll. On "exec" it becomes another program, else it polls after a while; in either
/// case a forked child holds its descriptors.
pub fn slow(mut link: ShmLink, _to: PeerId, parent: Addr) {
    println!("!{}", link.addr());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    if line == "meet\n" {
        let (from, _) = frame(&mut link);
        say(&mut link, from, b"met");
        line.clear();
        std::io::stdin().read_line(&mut line).unwrap();
    }
    let this = std::process::id() as i32;
    // SAFETY: the child only sleeps until its parent has ended, with copies of all sockets.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: system calls that touch no memory.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::getppid() == this {
                libc::usleep(1000);
            }
            libc::_exit(0);
        }
    }
    if line == "exec\n" {
        let why = command("after exec", parent).stdout(Stdio::inherit()).exec();
        panic!("not executed: {why}");
    }
    std::thread::sleep(Duration::from_millis(3500));
    let (from, bytes) = frame(&mut link);
    say(&mut link, from, &bytes);
    closed(&mut link);
}

/// A peer that listens and has not looked at it, what it reads from its standard input, and what it has said.
fn start_slow(link: &mut ShmLink) -> (Child, PeerId, impl Iterator<Item = String> + use<>) {
    let mut child = command("slow", link.addr());
    let mut child = child.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addr = said.find_map(|line| line.split_once('!').map(|(_, addr)| addr.parse().unwrap()));
    let peer = link.peer(&Addr::new(addr.expect("it listens")));
    (child, peer, said)
}

fn order(child: &mut Child, line: &str) {
    child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
}

/// As [`event`], by a sleeper that only the link wakes.
fn woken(link: &mut ShmLink) -> Event {
    let start = Instant::now();
    loop {
        if let Some(event) = link.poll() {
            return event;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        if link.arm() {
            assert!(wait(link, 60_000), "not woken");
        }
    }
}

/// The pid lives, and a forked child holds the listening socket and all channels: neither shows an end.
#[test]
fn a_peer_that_is_another_program_by_now_is_closed_while_a_child_of_its_lives() {
    for stage in ["called before", "called afterwards", "met"] {
        let mut link = open();
        let (mut child, peer, mut said) = start_slow(&mut link);
        if stage == "called before" {
            say(&mut link, peer, b"unheard");
        } else if stage == "met" {
            order(&mut child, "meet\n");
            say(&mut link, peer, b"here");
            assert_eq!(frame(&mut link), (peer, b"met".to_vec()));
        }
        order(&mut child, "exec\n");
        said.find(|line| line.ends_with("!ready")).expect("the program was executed");
        if stage == "called afterwards" {
            say(&mut link, peer, b"unheard");
        }
        let end = woken(&mut link);
        assert!(matches!(end, Event::Closed(id, Gone::Reset) if id == peer), "{stage}: {end:?}");
        if stage != "met" {
            // It is known by now, and found out at once.
            let again = link.send(peer, b"x", &[], 0, 0);
            assert_eq!(again, Err(Refused::Gone(Gone::Refused)), "{stage}");
        }
        drop(child.stdin.take());
        finish(child);
    }
}

/// It has a forked child, too, but is the program that listens: its peers wait for it, through several looks.
#[test]
fn a_peer_that_takes_long_to_answer_is_waited_for() {
    let mut link = open();
    let (mut child, peer, _said) = start_slow(&mut link);
    say(&mut link, peer, b"patience");
    order(&mut child, "look\n");
    match woken(&mut link) {
        Event::Frame(f) => link.release(f),
        other => panic!("{other:?}"),
    }
    drop(link);
    finish(child);
}
