//! `FI_OPT_CUDA_API_PERMITTED` = false, over the stand-in for CUDA's driver. The agent is there for a
//! process, so each test is one.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cuda_stand_in::again::{itself, outcome};
use cuda_stand_in::driver::Driver;

use super::*;
use crate::param::{self, CopyAgent};

const LEN: usize = 600_000;

#[test]
#[ignore = "the agent of the tests below"]
fn as_agent() {
    Driver::load();
    hmem::agent_process::serve(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
}

fn set_option(ep: *mut fi::fid_ep, permitted: bool) -> c_int {
    let (level, name) = (fi::FI_OPT_ENDPOINT, fi::FI_OPT_CUDA_API_PERMITTED);
    call!(ep, ops.setopt(level, name, (&raw const permitted).cast(), 1))
}

/// Has the provider start this program as the agent, by a script that stands for the command, and that
/// becomes the file with the agent's pid.
fn agent_is_this_program() -> std::path::PathBuf {
    let file = std::env::temp_dir().join(format!("strait-copy-agent-{}", std::process::id()));
    let exe = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\necho $$ >'{}'\nexec '{}' --exact tests::agent::as_agent --nocapture --ignored\n",
        file.display(),
        exe.display()
    );
    std::fs::write(&file, script).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o700)).unwrap();
    param::set_copy_agent(CopyAgent::At(file.clone()));
    file
}

/// Registers memory, with the descriptor that NCCL's plug-in would pass.
fn register(w: &World, at: usize, iface: fi::fi_hmem_iface) -> *mut fi::fid_mr {
    let iov = libc::iovec { iov_base: ptr::with_exposed_provenance_mut(at), iov_len: LEN };
    let anon1 = fi::fi_mr_attr__bindgen_ty_1 { mr_iov: &raw const iov };
    let access =
        fi::FI_SEND | fi::FI_RECV | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE | fi::FI_READ | fi::FI_WRITE;
    let requested_key = at as u64;
    let attr = fi::fi_mr_attr { anon1, iov_count: 1, iface, access, requested_key, ..Default::default() };
    let mut mr = ptr::null_mut();
    assert_eq!(call!(w.domain, mr.regattr(&attr, 0, &mut mr)), 0);
    mr
}

/// A thread in cudaFree, which waits for a kernel; the driver's other calls wait for that.
fn begin_to_free(cu: Driver) -> std::thread::JoinHandle<()> {
    let scratch = cu.alloc(8);
    cu.kernel(true);
    let freeing = std::thread::spawn(move || cu.free(scratch));
    while cu.freeing() == 0 {
        std::thread::yield_now();
    }
    freeing
}

/// Waits for `n` completions.
fn complete(w: &World, n: usize) {
    for _ in 0..n {
        loop {
            match w.read() {
                Ok(_) => break,
                Err(AGAIN) => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

fn transfers(by_agent: bool) {
    let cu = Driver::start();
    let file = by_agent.then(agent_is_this_program);
    let w = World::new(Setting::default());
    let ((one, name), (two, other)) = (w.ep(), w.ep());
    let (to_one, to_two) = (w.insert(&name), w.insert(&other));
    if by_agent {
        assert_eq!((set_option(one, false), set_option(two, false), set_option(two, true)), (0, 0, 0));
    }
    let (a, b) = (cu.alloc(LEN), cu.alloc(LEN));
    let (mut host, mut flush) = (vec![0u8; LEN], vec![0u8; LEN]);
    let (host_at, flush_at) = (host.as_mut_ptr().expose_provenance(), flush.as_mut_ptr().expose_provenance());
    let pattern: Vec<u8> = (0..LEN).map(|n| (n * 7 + n / 251) as u8).collect();
    cu.write(a, &pattern);
    let mrs = [
        register(&w, a, fi::FI_HMEM_CUDA),
        register(&w, b, fi::FI_HMEM_CUDA),
        register(&w, host_at, fi::FI_HMEM_SYSTEM),
        register(&w, flush_at, fi::FI_HMEM_SYSTEM),
    ];
    // SAFETY: open registrations.
    let keys = mrs.map(|mr| unsafe { (*mr).key });
    let p = |at: usize| ptr::with_exposed_provenance_mut::<c_void>(at);
    let send = |ep: *mut fi::fid_ep, at, len, to| assert_eq!(call!(ep, msg.send(p(at), len, NO, to, NO)), 0);
    let recv = |ep: *mut fi::fid_ep, at, len| {
        assert_eq!(call!(ep, msg.recv(p(at), len, NO, fi::FI_ADDR_UNSPEC, NO)), 0)
    };

    let freeing = begin_to_free(cu);
    // Device to device, long and short; to the host, and from it.
    for len in [LEN, 8] {
        recv(two, b, len);
        send(one, a, len, to_two);
        complete(&w, 2);
    }
    recv(one, host_at, LEN);
    send(two, b, LEN, to_one);
    complete(&w, 2);
    recv(two, a, 1000);
    send(one, host_at + 1000, 1000, to_two);
    complete(&w, 2);
    // Addresses are offsets here. A write to a device, and a read of a few of its bytes, which is how a
    // plug-in flushes.
    assert_eq!(call!(one, rma.write(p(host_at), LEN / 2, NO, to_two, 7, keys[1], NO)), 0);
    complete(&w, 1);
    assert_eq!(call!(two, rma.read(p(flush_at), 100_000, NO, to_two, 0, keys[1], NO)), 0);
    complete(&w, 1);
    assert_eq!(call!(one, rma.write(p(a + 8), 8, NO, to_two, 0, keys[1], NO)), 0);
    complete(&w, 1);
    assert_eq!(call!(two, rma.read(p(flush_at), 4, NO, to_two, 0, keys[1], NO)), 0);
    complete(&w, 1);
    // What the kernel waited for is there.
    cu.kernel(false);
    freeing.join().unwrap();

    assert_eq!(host, pattern);
    assert_eq!(flush[..4], pattern[1008..1012]);
    assert_eq!(flush[7..100_000], pattern[..99_993]);
    let (a, b) = (cu.read(a, LEN), cu.read(b, LEN));
    assert_eq!((&a[..1000], &a[1000..]), (&pattern[1000..2000], &pattern[1000..]));
    assert_eq!((&b[..8], &b[8..7 + LEN / 2]), (&pattern[1008..1016], &pattern[1..LEN / 2]));
    assert_eq!(b[7 + LEN / 2..], pattern[7 + LEN / 2..]);
    for mr in mrs {
        assert_eq!(close(mr), 0);
    }
    assert_eq!((close(one), close(two)), (0, 0));
    w.end();
    file.into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
}

#[test]
#[ignore = "a process of a test"]
fn with_the_option() {
    transfers(true);
}

#[test]
#[ignore = "a process of a test"]
fn without_the_option() {
    transfers(false);
}

#[test]
fn without_calls_of_cuda_transfers_go_on_while_cuda_free_waits_for_them() {
    assert!(outcome(itself("tests::agent::with_the_option"), 200).is_some_and(|s| s.success()));
    assert_eq!(outcome(itself("tests::agent::without_the_option"), 3), None, "what the agent is for");
}

/// Gives the other process bytes under a name, and takes its.
fn exchange(what: &str, side: usize, bytes: &[u8]) -> Vec<u8> {
    let dir = std::path::PathBuf::from(std::env::var("EXCHANGE").unwrap());
    let file = |side| dir.join(format!("{what}.{side}"));
    std::fs::write(dir.join(format!("new.{side}")), bytes).unwrap();
    std::fs::rename(dir.join(format!("new.{side}")), file(side)).unwrap();
    loop {
        match std::fs::read(file(1 - side)) {
            Ok(theirs) => return theirs,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

#[test]
#[ignore = "a process of a test"]
fn one_of_two() {
    let side: usize = std::env::var("SIDE").unwrap().parse().unwrap();
    let cu = Driver::start();
    let file = agent_is_this_program();
    let w = World::new(Setting::default());
    let (ep, name) = w.ep();
    assert_eq!(set_option(ep, false), 0);
    let to = w.insert(&exchange("name", side, &name));
    let of = |side: usize| -> Vec<u8> { (0..LEN).map(|n| (n * 7 + n / 251 + 100 * side) as u8).collect() };
    // What is sent, received and written is in memory of cudaMalloc, what is read in memory that is mapped by
    // hand.
    let (a, b, c, d) = (cu.alloc(LEN), cu.alloc(LEN), cu.alloc(LEN), cu.map(1));
    cu.write(a, &of(side));
    cu.write(d, &of(side));
    cu.write(c, &vec![0; LEN]);
    let mrs = [a, b, c, d].map(|at| register(&w, at, fi::FI_HMEM_CUDA));
    // SAFETY: open registrations.
    let keys: Vec<u8> = [mrs[2], mrs[3]].iter().flat_map(|mr| unsafe { (**mr).key }.to_le_bytes()).collect();
    let theirs = exchange("keys", side, &keys);
    let key = |n: usize| u64::from_le_bytes(theirs[n * 8..n * 8 + 8].try_into().unwrap());
    let p = |at: usize| ptr::with_exposed_provenance_mut::<c_void>(at);
    let freeing = begin_to_free(cu);
    for len in [8, 5000, 100_000, LEN] {
        for _ in 0..3 {
            assert_eq!(call!(ep, msg.recv(p(b), len, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
        }
        for _ in 0..3 {
            assert_eq!(call!(ep, msg.send(p(a), len, NO, to, NO)), 0);
        }
        complete(&w, 6);
    }
    assert_eq!(call!(ep, rma.write(p(a), LEN / 2, NO, to, 0, key(0), NO)), 0);
    assert_eq!(call!(ep, rma.write(p(a + LEN / 2), LEN - LEN / 2, NO, to, (LEN / 2) as u64, key(0), NO)), 0);
    complete(&w, 2);
    assert_eq!(call!(ep, rma.read(p(a), LEN, NO, to, 0, key(1), NO)), 0);
    complete(&w, 1);
    // The other side needs progress of this one until all of its has completed.
    let mut byte = [0u8; 1];
    assert_eq!(call!(ep, msg.recv((&raw mut byte).cast(), 1, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
    assert_eq!(call!(ep, msg.send((&raw const byte).cast(), 1, NO, to, NO)), 0);
    complete(&w, 2);
    cu.kernel(false);
    freeing.join().unwrap();
    for at in [a, b, c] {
        assert_eq!(cu.read(at, LEN), of(1 - side), "{}", at == a);
    }
    assert_eq!((cu.calls(c"cuIpcOpenMemHandle_v2"), cu.calls(c"cuMemcpyAsync")), (0, 0));
    exchange("end", side, &[]);
    for mr in mrs {
        assert_eq!(close(mr), 0);
    }
    assert_eq!(close(ep), 0);
    w.end();
    std::fs::remove_file(file).unwrap();
}

/// Two processes that both wait in cudaFree exchange messages and access memory.
#[test]
fn processes_in_cuda_free_exchange_messages_and_memory() {
    let dir = std::env::temp_dir().join(format!("strait-agent-two-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut sides = [0, 1].map(|side: usize| {
        let mut command = itself("tests::agent::one_of_two");
        command.env("EXCHANGE", &dir).env("SIDE", side.to_string()).stdout(Stdio::null()).spawn().unwrap()
    });
    let until = Instant::now() + Duration::from_secs(200);
    while Instant::now() < until && sides.iter_mut().any(|s| s.try_wait().unwrap().is_none()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    for side in &mut sides {
        let _ = side.kill();
        assert!(side.wait().unwrap().success());
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
#[ignore = "a process of a test"]
fn with_an_agent_that_is_killed() {
    let cu = Driver::start();
    let file = agent_is_this_program();
    let w = World::new(Setting::default());
    let ((one, _), (two, other)) = (w.ep(), w.ep());
    let to_two = w.insert(&other);
    assert_eq!(set_option(one, false), 0);
    let (a, b) = (cu.alloc(LEN), cu.alloc(LEN));
    let mrs = [a, b].map(|at| register(&w, at, fi::FI_HMEM_CUDA));
    let pid = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    // SAFETY: touches no memory.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
    let p = |at: usize| ptr::with_exposed_provenance_mut::<c_void>(at);
    for len in [8, LEN] {
        assert_eq!(call!(two, msg.recv(p(b), len, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
        assert_eq!(call!(one, msg.send(p(a), len, NO, to_two, NO)), 0);
        let (mut ended, mut failed) = (0, 0);
        while ended < 2 {
            match w.read() {
                Ok(_) => ended += 1,
                Err(AGAIN) => std::thread::yield_now(),
                Err(_) => {
                    let mut entry = fi::fi_cq_err_entry::default();
                    assert_eq!(call!(w.cq, ops.readerr(&mut entry, 0)), 1);
                    (ended, failed) = (ended + 1, failed + 1);
                }
            }
        }
        assert!(failed > 0, "{len} bytes cannot have been copied");
    }
    // What is in the host's memory goes on.
    let (from, mut to) = ([7u8; 100], [0u8; 100]);
    assert_eq!(call!(two, msg.recv((&raw mut to).cast(), 100, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
    assert_eq!(call!(one, msg.send((&raw const from).cast(), 100, NO, to_two, NO)), 0);
    complete(&w, 2);
    // SAFETY: the receive has completed.
    assert_eq!(unsafe { (&raw const to).read_volatile() }, from);
    assert_eq!(set_option(two, false), -fi::FI_EOPNOTSUPP);
    for mr in mrs {
        assert_eq!(close(mr), 0);
    }
    assert_eq!((close(one), close(two)), (0, 0));
    w.end();
    std::fs::remove_file(file).unwrap();
}

#[test]
fn if_the_agent_is_killed_operations_end_with_an_error() {
    assert!(outcome(itself("tests::agent::with_an_agent_that_is_killed"), 200).is_some_and(|s| s.success()));
}

#[test]
#[ignore = "a process of a test"]
fn with_no_agent_to_be_had() {
    let w = World::new(Setting::default());
    let (ep, _) = w.ep();
    assert_eq!(set_option(ep, false), 0, "there is no CUDA");
    Driver::start();
    param::set_copy_agent(CopyAgent::At("/nowhere/strait".into()));
    assert_eq!(set_option(ep, false), -fi::FI_EOPNOTSUPP);
    assert_eq!(set_option(ep, true), 0);
}

#[test]
fn without_an_agent_the_option_is_refused() {
    assert!(outcome(itself("tests::agent::with_no_agent_to_be_had"), 100).is_some_and(|s| s.success()));
}
