//! NCCL's collectives between processes, over the stand-ins for NCCL's library and CUDA's driver.
#![cfg(not(loom))]

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cuda_stand_in::driver::Driver;
use device_ops::nccl::{Comm, Library, NcclError, Rank, UniqueId, Vendor, element};
use device_ops::{Memory, Op, Type};

const RANKS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// This program once more, as the rank of a job; `RANK` and `JOB` say which.
fn rank(part: &str, rank: usize, id: &UniqueId, environment: &[(&str, &str)]) -> Child {
    let id: String = id.0.iter().map(|b| format!("{b:02x}")).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_rank", "--nocapture", "--ignored"])
        .env("STRAIT_NCCL_LIBRARY", stand_in::program::path("nccl_stand_in"))
        .envs([("PART", part), ("RANK", &rank.to_string()), ("JOB", &id)])
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn id() -> UniqueId {
    let mut id = [0; 128];
    let mut seed = std::collections::hash_map::RandomState::new();
    for part in id.chunks_mut(8) {
        use std::hash::{BuildHasher, Hasher};
        part.copy_from_slice(&seed.build_hasher().finish().to_ne_bytes());
        seed = std::collections::hash_map::RandomState::new();
    }
    UniqueId(id)
}

/// Runs that part in all ranks; each has to end well, but for those that it kills.
fn job(part: &str, environment: &[(&str, &str)], killed: &[usize]) {
    let id = id();
    let ranks: Vec<Child> = (0..RANKS).map(|r| rank(part, r, &id, environment)).collect();
    let begin = Instant::now();
    let ended: Vec<bool> = ranks
        .into_iter()
        .map(|mut child| {
            loop {
                match child.try_wait().unwrap() {
                    Some(status) => break status.success(),
                    None if begin.elapsed() > 2 * LIMIT => {
                        child.kill().unwrap();
                        child.wait().unwrap();
                        break false;
                    }
                    None => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        })
        .collect();
    // A job whose ranks have not all come leaves the stand-in's memory there.
    let hex: String = id.0[..16].iter().map(|b| format!("{b:02x}")).collect();
    let _ = std::fs::remove_file(format!("/dev/shm/nccl-stand-in-{hex}"));
    let wanted: Vec<bool> = (0..RANKS).map(|r| !killed.contains(&r)).collect();
    assert_eq!(ended, wanted, "{part}");
}

#[test]
fn every_collective_has_the_right_contents() {
    job("collectives", &[], &[]);
}

#[test]
fn calls_that_fail_are_errors_with_nccls_words() {
    job("failing call", &[("NCCL_STAND_IN_FAIL", "ncclAllReduce@2=3")], &[]);
}

#[test]
fn a_communicator_that_fails_by_itself_is_an_error_and_is_aborted() {
    job("async error", &[("NCCL_STAND_IN_ASYNC", "3@2")], &[]);
}

#[test]
fn ranks_whose_peer_is_gone_have_an_error() {
    job("gone", &[], &[2]);
}

#[test]
fn a_rank_that_does_not_come_ends_the_wait_at_its_limit() {
    job("absent", &[], &[]);
}

#[test]
fn a_library_that_is_not_there_is_an_error_that_says_where_to_name_one() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "without_a_library", "--nocapture", "--ignored"])
        .env("STRAIT_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
#[ignore = "a process of its own"]
fn without_a_library() {
    for vendor in [Vendor::Nvidia, Vendor::Amd] {
        let e = Library::open(vendor).unwrap_err();
        assert!(
            matches!(e, NcclError::Library { .. }) && e.to_string().contains("STRAIT_NCCL_LIBRARY"),
            "{e}"
        );
    }
}

fn memory(at: usize, len: usize) -> Memory {
    // SAFETY: nothing is freed before the process ends.
    unsafe { Memory::new(at, len) }
}

struct Side {
    cu: Driver,
    comm: Comm,
    at: Rank,
}

impl Side {
    fn buffer(&self, numbers: &[i32]) -> Memory {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
        let at = self.cu.alloc(bytes.len().max(4));
        self.cu.write(at, &bytes);
        memory(at, bytes.len())
    }

    fn numbers(&self, of: Memory, n: usize) -> Vec<i32> {
        let bytes = self.cu.read(of.origin() as usize, 4 * n);
        bytes.chunks(4).map(|b| i32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    /// Of rank `r`, the numbers that it begins with.
    fn of(r: usize, n: usize) -> Vec<i32> {
        (0..n as i32).map(|i| i * 3 + 1000 * r as i32).collect()
    }

    fn sum(n: usize) -> Vec<i32> {
        let all = [0, 1, 2].map(|r| Side::of(r, n));
        (0..n).map(|i| all.iter().map(|of| of[i]).sum()).collect()
    }

    fn all_reduce(&self, n: usize) -> Result<Memory, NcclError> {
        let sum = element(Op::Sum, Type::I32, self.comm_version()).unwrap();
        let own = self.buffer(&Side::of(self.at.rank, n));
        self.comm.all_reduce(sum, own, own, n)?;
        self.comm.wait()?;
        Ok(own)
    }

    fn comm_version(&self) -> i32 {
        Library::open(Vendor::Nvidia).unwrap().version()
    }

    fn collectives(&self) {
        let Rank { rank, size } = self.at;
        for n in [0, 1, 1000, 10_000] {
            let own = Side::of(rank, n);
            let reduced = self.all_reduce(n).unwrap();
            assert_eq!(self.numbers(reduced, n), Side::sum(n));
            let (from, to) = (self.buffer(&own), self.buffer(&vec![-1; n]));
            let largest = element(Op::Max, Type::I32, self.comm_version()).unwrap();
            self.comm.reduce(largest, from, to, n, 1).unwrap();
            self.comm.broadcast(from, 4 * n, 2).unwrap();
            let all = self.buffer(&vec![-1; n * size]);
            self.comm.all_gather(self.buffer(&own), all, 4 * n).unwrap();
            self.comm.wait().unwrap();
            let wanted = if rank == 1 { Side::of(RANKS - 1, n) } else { vec![-1; n] };
            assert_eq!(self.numbers(to, n), wanted);
            assert_eq!(self.numbers(from, n), Side::of(2, n));
            let gathered: Vec<i32> = (0..size).flat_map(|r| Side::of(r, n)).collect();
            assert_eq!(self.numbers(all, n * size), gathered);

            let each = self.buffer(&Side::of(rank, n * size));
            let part = self.buffer(&vec![-1; n]);
            let sum = element(Op::Sum, Type::I32, self.comm_version()).unwrap();
            self.comm.reduce_scatter(sum, each, part, n).unwrap();
            // Around the ring, both ways at once.
            let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
            let (up, down) = (self.buffer(&vec![-1; n]), self.buffer(&vec![-1; n]));
            let own = self.buffer(&own);
            self.comm
                .group(|g| {
                    g.send(own, 4 * n, next)?;
                    g.send(own, 4 * n, last)?;
                    g.recv(up, 4 * n, last)?;
                    g.recv(down, 4 * n, next)
                })
                .unwrap();
            self.comm.wait().unwrap();
            assert_eq!(self.numbers(part, n), Side::sum(n * size)[rank * n..(rank + 1) * n]);
            assert_eq!(self.numbers(up, n), Side::of(last, n));
            assert_eq!(self.numbers(down, n), Side::of(next, n));
        }
        let small = self.buffer(&[0; 4]);
        let sum = element(Op::Sum, Type::I32, self.comm_version()).unwrap();
        assert!(matches!(self.comm.all_reduce(sum, small, small, 5), Err(NcclError::Argument(_))));
        assert!(matches!(self.comm.broadcast(small, 16, RANKS), Err(NcclError::Argument(_))));
        assert!(matches!(self.comm.broadcast(small, usize::MAX, 0), Err(NcclError::Argument(_))));
        assert!(self.comm.is_done().unwrap());
        // Ranks 0 and 2 in the other order; rank 1 in none.
        let color = (rank != 1).then_some(7);
        let at = Rank { rank: usize::from(rank == 0), size: 2 };
        let half = self.comm.split(color, -(rank as i32), at).unwrap();
        assert_eq!(half.is_some(), rank != 1);
        if let Some(half) = half {
            let buffer = self.buffer(&[rank as i32 + 5]);
            half.broadcast(buffer, 4, 0).unwrap();
            half.wait().unwrap();
            assert_eq!(self.numbers(buffer, 1), [7], "rank 2 is first there");
        }
    }
}

#[test]
#[ignore = "a process of its own"]
fn as_a_rank() {
    let number = |name: &str| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (part, rank) = (std::env::var("PART").unwrap(), number("RANK"));
    let hex = std::env::var("JOB").unwrap();
    let mut id = UniqueId([0; 128]);
    for (i, byte) in id.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    }
    let cu = Driver::start();
    hmem::cuda::find_driver();
    let near = cu.alloc(64);
    let library = Library::open(Vendor::Nvidia).unwrap();
    let at = Rank { rank, size: RANKS };
    assert!(matches!(
        Comm::new(library, &id, Rank { rank: 3, size: 3 }, near, LIMIT),
        Err(NcclError::Argument(_))
    ));
    if part == "absent" {
        if rank == 0 {
            let limit = Duration::from_millis(300);
            let e = Comm::new(library, &id, at, near, limit).unwrap_err();
            assert!(matches!(e, NcclError::TimedOut(..)) && e.to_string().contains("a rank is gone"), "{e}");
            // Its thread waits for the others still.
            std::process::exit(0);
        }
        return;
    }
    let side = Side { cu, comm: Comm::new(library, &id, at, near, LIMIT).unwrap(), at };
    match part.as_str() {
        "collectives" => side.collectives(),
        "failing call" => {
            side.all_reduce(8).unwrap();
            let e = side.all_reduce(8).unwrap_err();
            assert!(
                matches!(e, NcclError::Call { code: 3, .. }) && e.to_string().contains("internal error"),
                "{e}"
            );
            assert_eq!(side.all_reduce(8).unwrap_err(), NcclError::Failed);
        }
        "async error" => {
            side.all_reduce(8).unwrap();
            let e = side.all_reduce(8).unwrap_err();
            assert!(matches!(e, NcclError::Async { code: 3, .. }), "{e}");
            assert_eq!(side.comm.is_done(), Err(NcclError::Failed));
            side.comm.abort();
        }
        "gone" => {
            side.all_reduce(8).unwrap();
            if rank == 2 {
                std::process::abort();
            }
            let e = side.all_reduce(8).unwrap_err();
            assert!(matches!(e, NcclError::Async { code: 6, .. }) && e.to_string().contains("remote"), "{e}");
        }
        other => panic!("no part {other}"),
    }
}
