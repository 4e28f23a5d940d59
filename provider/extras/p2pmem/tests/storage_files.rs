//! Transfers of several files at once: contents, ends of files, what fails, and which file it was.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Request};

/// Shards of these lengths: of none, of less than a block, of whole pieces, and of more.
const LENGTHS: [usize; 7] = [0, 5, 4096, 4 << 20, (4 << 20) + 1, (9 << 20) + 77, 70_000];

/// A directory of shards, removed on drop.
struct Shards(PathBuf);

impl Shards {
    fn new(name: &str) -> Shards {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.join(format!("storage-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (n, len) in LENGTHS.iter().enumerate() {
            std::fs::write(dir.join(n.to_string()), content(n, *len)).unwrap();
        }
        Shards(dir)
    }

    fn open(&self, n: usize, write: bool) -> Arc<File> {
        let options = Options { write, create: write, cufile: false, ..Options::default() };
        Arc::new(File::open(&self.0.join(n.to_string()), options).unwrap())
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn content(of: usize, len: usize) -> Vec<u8> {
    (0..len).map(|n| (of * 31 + n * 7 + (n >> 8) * 13 + (n >> 16)) as u8).collect()
}

/// All shards one behind the other, each with 100 bytes more than it has.
fn ops(shards: &Shards, base: usize) -> Vec<(Arc<File>, Op)> {
    let mut at = base;
    let op = |(n, len): (usize, &usize)| {
        let op = Op { write: false, addr: at, len: len + 100, offset: 0 };
        at += op.len;
        (shards.open(n, false), op)
    };
    LENGTHS.iter().enumerate().map(op).collect()
}

fn wait(request: &Request) -> Vec<Result<usize, p2pmem::Error>> {
    assert!(request.wait(Some(Duration::from_secs(60))), "it does not end");
    request.take().unwrap()
}

#[test]
fn shards_are_read_to_host_memory_up_to_the_end_of_each() {
    let shards = Shards::new("host");
    let total: usize = LENGTHS.iter().map(|len| len + 100).sum();
    let mut memory = vec![0xeeu8; total];
    let all = ops(&shards, memory.as_mut_ptr().expose_provenance());
    // SAFETY: each range is inside of `memory`, which stays.
    let request = unsafe { Request::submit_files(&all) };
    let results: Vec<_> = wait(&request).into_iter().map(Result::unwrap).collect();
    assert_eq!(results, LENGTHS);
    let mut at = 0;
    for (n, len) in LENGTHS.iter().enumerate() {
        assert!(memory[at..at + len] == content(n, *len), "shard {n}");
        assert!(memory[at + len..at + len + 100].iter().all(|b| *b == 0xee), "behind shard {n}");
        at += len + 100;
    }
}

#[test]
fn shards_are_read_to_and_written_from_memory_of_a_device() {
    let cu = Driver::start();
    cu.enter(0);
    let shards = Shards::new("cuda");
    let total: usize = LENGTHS.iter().map(|len| len + 100).sum();
    let memory = cu.alloc(total);
    let all = ops(&shards, memory);
    // SAFETY: each range is inside of the allocation, which stays.
    let request = unsafe { Request::submit_files(&all) };
    let results: Vec<_> = wait(&request).into_iter().map(Result::unwrap).collect();
    assert_eq!(results, LENGTHS);
    let writes: Vec<_> = all
        .iter()
        .zip(LENGTHS)
        .enumerate()
        .map(|(n, ((_, op), len))| (shards.open(100 + n, true), Op { write: true, len, ..*op }))
        .collect();
    // SAFETY: as above.
    let request = unsafe { Request::submit_files(&writes) };
    assert!(wait(&request).into_iter().map(Result::unwrap).eq(LENGTHS));
    for (n, len) in LENGTHS.iter().enumerate() {
        assert!(
            std::fs::read(shards.0.join((100 + n).to_string())).unwrap() == content(n, *len),
            "shard {n}"
        );
    }
}

/// The others go on.
#[test]
fn a_transfer_that_fails_names_its_file() {
    let shards = Shards::new("fails");
    let mut memory = vec![0u8; 32 << 20];
    let base = memory.as_mut_ptr().expose_provenance();
    let mut all = ops(&shards, base);
    // A file that is open for reading alone, and memory that is none.
    all[3].1.write = true;
    all[5].1.addr = usize::MAX - 10;
    // SAFETY: what is no memory is refused; the rest is inside of `memory`.
    let request = unsafe { Request::submit_files(&all) };
    let results = wait(&request);
    for (n, result) in results.iter().enumerate() {
        match (n, result) {
            (3 | 5, Err(e)) => {
                let name = shards.0.join(n.to_string());
                assert!(e.to_string().starts_with(&name.display().to_string()), "{e}");
            }
            (3 | 5, Ok(n)) => panic!("{n} bytes"),
            (_, result) => assert_eq!(*result.as_ref().unwrap(), LENGTHS[n]),
        }
    }
}

#[test]
fn no_transfers_are_done_at_once() {
    // SAFETY: there is no memory.
    let request = unsafe { Request::submit_files(&[]) };
    assert!(request.poll() && request.take().unwrap().is_empty());
}
