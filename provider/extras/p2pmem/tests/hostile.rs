//! What a program may do wrong, and what other processes may: nothing hangs, nothing is lost, and each
//! mistake has its words.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipc::socket;
use p2pmem::daemon::wire::{Answer, Ask, MOST};
use p2pmem::daemon::{Connection, Server};
use p2pmem::publisher::{Host, PAGE, Region};
use p2pmem::storage::{File, Op, Options, Request};
use p2pmem::{Drain, Orchestrator, Rules, Topology};

fn host() -> Orchestrator {
    let all = Orchestrator::new(Topology::parse("").unwrap(), Rules::default(), Some(1));
    all.publish(Arc::new(Host::new(1 << 20))).unwrap();
    all
}

fn name(of: &str) -> String {
    format!("strait-p2pmem-hostile/{of}/{}", std::process::id())
}

/// Has a forked process do it: what it ends with, 0 to 127.
fn forked(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does what it has to, and ends.
    match unsafe { libc::fork() } {
        0 => {
            // What hangs there is ended.
            // SAFETY: an alarm of the child's own.
            unsafe { libc::alarm(300) };
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(99);
            // SAFETY: nothing of the parent's is run.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process, and a valid place.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
        }
    }
}

/// A forked process neither frees what is its parent's nor takes its answers.
#[test]
fn forked_child_neither_frees_nor_receives_for_its_parent() {
    let (all, name) = (host(), name("fork"));
    let mut server = Server::new(&name, all.clone()).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let until = stop.clone();
    let serving = std::thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            server.serve_once(Duration::from_millis(20));
        }
    });
    let mut own = Connection::open(&name).unwrap();
    let (kept, freed) =
        (own.allocate(&[], PAGE, 1, 1, true, "").unwrap(), own.allocate(&[], PAGE, 1, 1, true, "").unwrap());
    let mut both = Some((own, kept, freed));
    let code = forked(|| {
        let Some((mut own, kept, freed)) = both.take() else { return 1 };
        let at = std::ptr::with_exposed_provenance_mut::<u8>(kept.pieces()[0].addr());
        // SAFETY: shared with the parent, which waits.
        unsafe { at.write(7) };
        if own.free(freed).is_err() {
            return 2;
        }
        let words = |e: p2pmem::Error| e.errno() == libc::EOPNOTSUPP && e.to_string().contains("forked");
        match (own.list(&[]).map_err(words), own.revoked().map_err(words)) {
            (Err(true), Err(true)) => 0,
            _ => 3,
        }
    });
    assert_eq!(code, 0);
    let (mut own, kept, freed) = both.unwrap();
    assert_eq!(all.publishers()[0].buffers, 2, "the child has freed one");
    let at = std::ptr::with_exposed_provenance::<u8>(kept.pieces()[0].addr());
    // SAFETY: mapped, and the child is gone.
    assert_eq!(unsafe { at.read() }, 7);
    assert_eq!(own.list(&[]).unwrap().len(), 1);
    own.free(kept).unwrap();
    own.free(freed).unwrap();
    assert_eq!(all.publishers()[0].buffers, 0);
    stop.store(true, Ordering::Relaxed);
    serving.join().unwrap();
}

#[test]
fn after_an_answer_that_makes_no_sense_no_other_is_taken_for_one() {
    let name = name("late");
    let listener = socket::listen(&name).unwrap();
    let mut own = Connection::open(&name).unwrap();
    let daemon = socket::accept(&listener).unwrap();
    let say = |answer: Answer| socket::send(&daemon, &answer.to_bytes()).unwrap();
    // The second one would be the answer to what is asked next.
    say(Answer::Token { token: [1; 16] });
    say(Answer::Done { count: 0 });
    assert_eq!(own.list(&[]).unwrap_err().errno(), libc::EPROTO);
    let error = own.list(&[]).unwrap_err();
    assert!(error.errno() == libc::EPIPE && error.to_string().contains("asks no more"), "{error}");
    let mut bytes = [0; MOST];
    let len = socket::receive(&daemon, &mut bytes).unwrap();
    assert_eq!(Ask::parse(&bytes[..len]), Some(Ask::List { from: 0, clients: Vec::new() }));
    assert!(!socket::wait(&daemon, 0), "it was asked again");
    // A refusal is an answer.
    let mut own = Connection::open(&name).unwrap();
    let daemon = socket::accept(&listener).unwrap();
    let say = |answer: Answer| socket::send(&daemon, &answer.to_bytes()).unwrap();
    say(Answer::Failed { errno: libc::EUSERS, why: "no".into() });
    say(Answer::Done { count: 0 });
    assert_eq!(own.list(&[]).unwrap_err().errno(), libc::EUSERS);
    assert!(own.list(&[]).unwrap().is_empty());
}

/// A file that is gone when this is dropped.
struct Scratch(std::path::PathBuf);

impl Scratch {
    fn new(of: &str) -> Scratch {
        Scratch(
            std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
                .join(format!("{of}-{}", std::process::id())),
        )
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_forked_process_waits_for_no_transfer_of_its_parents() {
    const LEN: usize = 64 << 20;
    let scratch = Scratch::new("forked");
    std::fs::write(&scratch.0, vec![9; LEN]).unwrap();
    let file = Arc::new(File::open(&scratch.0, Options::default()).unwrap());
    let mut memory = vec![0u8; LEN];
    let op = Op { write: false, addr: memory.as_mut_ptr().expose_provenance(), len: LEN, offset: 0 };
    // SAFETY: the memory stays.
    let mut request = Some(unsafe { Request::submit(&file, &[op]) });
    let code = forked(|| {
        let Some(request) = request.take() else { return 1 };
        if !request.wait(None) {
            return 2;
        }
        match request.take().unwrap_or_default().as_slice() {
            [Err(e)] if e.errno() == libc::ECANCELED => {}
            _ => return 3,
        }
        drop(request);
        0
    });
    assert_eq!(code, 0);
    let request = request.unwrap();
    assert!(request.wait(None));
    assert_eq!(*request.take().unwrap()[0].as_ref().unwrap(), LEN);
    assert!(memory.iter().all(|b| *b == 9));
}

#[test]
fn what_has_no_bytes_by_offset_is_refused_and_not_waited_for() {
    let scratch = Scratch::new("pipe");
    let path = std::ffi::CString::new(scratch.0.as_os_str().as_bytes()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    for (path, what) in [(scratch.0.clone(), "a pipe"), (env!("CARGO_TARGET_TMPDIR").into(), "a directory")] {
        let error = File::open(&path, Options::default()).unwrap_err();
        assert!(error.errno() == libc::EINVAL && error.to_string().contains(what), "{error}");
    }
}

/// A publisher that drains still drains when it could not be taken out at once.
#[test]
fn draining_publisher_drains_on_after_a_failed_unpublish() {
    let all = host();
    let request = |len| p2pmem::Request { len, ..p2pmem::Request::default() };
    let held = all.grant(&request(PAGE)).unwrap();
    assert_eq!(all.unpublish("host", Drain::IfIdle).unwrap_err().errno(), libc::EBUSY);
    assert!(!all.publishers()[0].draining && all.grant(&request(PAGE)).is_ok());
    assert_eq!(all.unpublish("host", Drain::Wait(Duration::ZERO)).unwrap_err().errno(), libc::EBUSY);
    assert_eq!(all.unpublish("host", Drain::IfIdle).unwrap_err().errno(), libc::EBUSY);
    assert!(all.publishers()[0].draining && all.grant(&request(PAGE)).is_err());
    drop(held);
    all.unpublish("host", Drain::IfIdle).unwrap();
}

#[test]
fn an_alignment_is_one_of_the_address_where_that_is_known() {
    let all = host();
    let mut memory = vec![0u8; 64 * PAGE as usize];
    // A page behind a multiple of 16 pages.
    let at = memory.as_mut_ptr().expose_provenance().next_multiple_of(16 * PAGE as usize) + PAGE as usize;
    // SAFETY: the vector outlives the buffers.
    let region = unsafe { Region::of_memory("own", None, at, 40 * PAGE as usize) };
    all.publish(Arc::new(region)).unwrap();
    all.add_rule("pin publisher=own").unwrap();
    let (len, align) = (PAGE, 16 * PAGE);
    let request = p2pmem::Request { len, align, ..p2pmem::Request::default() };
    let buffers: Vec<_> = std::iter::from_fn(|| all.allocate(&request).ok()).collect();
    let places: Vec<_> = buffers.iter().map(|b| b.map().unwrap()[0].addr() - at).collect();
    assert_eq!(places, [15 * PAGE as usize, 31 * PAGE as usize]);
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_read_ends_where_it_ends() {
    const LEN: usize = 32 << 20;
    let scratch = Scratch::new("shorter");
    for direct in [true, false] {
        std::fs::write(&scratch.0, vec![9; LEN]).unwrap();
        let options = Options { write: true, direct, ..Options::default() };
        let file = Arc::new(File::open(&scratch.0, options).unwrap());
        let mut memory = vec![0u8; LEN];
        let op = Op { write: false, addr: memory.as_mut_ptr().expose_provenance(), len: LEN, offset: 0 };
        // SAFETY: the memory stays.
        let request = unsafe { Request::submit(&file, &[op]) };
        std::fs::OpenOptions::new().write(true).open(&scratch.0).unwrap().set_len(12_345).unwrap();
        assert!(request.wait(None));
        let read = *request.take().unwrap()[0].as_ref().unwrap();
        assert!((12_345..=LEN).contains(&read) && memory[..12_345].iter().all(|b| *b == 9), "{read}");
        // SAFETY: the memory stays.
        assert_eq!(unsafe { file.read(op.addr, LEN, 0) }.unwrap(), 12_345);
        // SAFETY: the memory stays.
        assert_eq!(unsafe { file.read(op.addr, LEN, 12_345) }.unwrap(), 0);
    }
}
