//! What the machine itself takes: no provider can be faster by the same means.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::session::Role;
use super::test::Test;
use super::wire::{Aside, Channel};
use crate::fabric::{Error, Part, Region, Remote};
use crate::os;

/// Memory here and in the other process.
#[derive(Debug)]
pub struct Floor {
    test: Test,
    region: Region,
    room: usize,
    cpus: (usize, usize),
    pid: i32,
    base: u64,
}

#[repr(align(256))]
struct Line(AtomicU64);

impl Floor {
    pub fn open(test: Test, most: usize, cpus: (usize, usize)) -> Result<Floor, Error> {
        if test == Test::CacheLine && cpus.0 == cpus.1 {
            return Err(Error::Unsupported("there is only one core".into()));
        }
        let room = Region::pages(most);
        let region = Region::new(2 * room)?;
        region.fill(Part { offset: 0, len: 2 * room }, 1);
        Ok(Floor { test, region, room, cpus, pid: 0, base: 0 })
    }

    pub fn meet(&mut self, aside: &mut Channel) -> Result<(), Error> {
        aside.send(&Aside::Hello(Remote {
            name: std::process::id().to_ne_bytes().into(),
            base: self.region.address(),
            len: self.region.len(),
            key: 0,
        }))?;
        match aside.recv()? {
            Aside::Hello(Remote { name, base, len, .. }) if len == self.region.len() => {
                let pid: Option<[u8; 4]> = name.try_into().ok();
                self.pid = pid.map_or(0, i32::from_ne_bytes);
                self.base = base;
                Ok(())
            }
            other => Err(Error::Failed(format!("{other:?} instead of a name"))),
        }
    }

    /// As the first worker; the second has nothing to do.
    pub fn measure(&self, role: Role, size: usize, seconds: f64) -> Result<Option<(u64, f64)>, Error> {
        if role == Role::Second {
            return Ok(None);
        }
        let mut count = 16;
        let mut took = self.run(size, count)?;
        for _ in 0..6 {
            if took.as_secs_f64() > seconds / 4.0 {
                break;
            }
            count *= 8;
            took = self.run(size, count)?;
        }
        let factor = seconds / took.as_secs_f64().max(1e-7);
        let count = ((count as f64 * factor) as u64).clamp(8, 50_000_000);
        let took = self.run(size, count)?;
        let ops = if self.test == Test::CacheLine { 2 * count } else { count };
        Ok(Some((ops, took.as_secs_f64())))
    }

    fn run(&self, size: usize, count: u64) -> Result<Duration, Error> {
        let from = Part { offset: 0, len: size };
        let to = Part { offset: self.room, len: size };
        match self.test {
            Test::CacheLine => ping_pong(self.cpus.1, count),
            Test::Memcpy => {
                let (from, to) = (self.region.at(from), self.region.at(to));
                let start = Instant::now();
                for _ in 0..count {
                    // SAFETY: two parts of the region that do not overlap, checked by `at`.
                    unsafe { black_box(to).copy_from_nonoverlapping(black_box(from), size) };
                }
                Ok(start.elapsed())
            }
            _ => {
                let here = libc::iovec { iov_base: self.region.at(to).cast(), iov_len: size };
                let there = libc::iovec {
                    iov_base: std::ptr::without_provenance_mut(self.base as usize),
                    iov_len: size,
                };
                let start = Instant::now();
                for _ in 0..count {
                    // SAFETY: `here` is a part of our region, checked by `at`; the kernel checks
                    // `there` in the other process.
                    let n = unsafe { libc::process_vm_readv(self.pid, &here, 1, &there, 1, 0) };
                    if n != size as isize {
                        let error = io::Error::last_os_error();
                        return Err(match n {
                            -1 => Error::Unsupported(format!("process_vm_readv: {error}")),
                            _ => Error::Failed(format!("process_vm_readv gave {n} of {size} bytes")),
                        });
                    }
                }
                Ok(start.elapsed())
            }
        }
    }
}

/// Round trips of one cache line to a thread on another core.
fn ping_pong(cpu: usize, count: u64) -> Result<Duration, Error> {
    let line = Line(AtomicU64::new(0));
    let wait = |value| {
        while line.0.load(Ordering::Acquire) != value {
            spin_loop();
        }
    };
    let ready = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = os::pin(cpu);
            ready.wait();
            for i in 0..count {
                wait(2 * i + 1);
                line.0.store(2 * i + 2, Ordering::Release);
            }
            pinned
        });
        ready.wait();
        let start = Instant::now();
        for i in 0..count {
            line.0.store(2 * i + 1, Ordering::Release);
            wait(2 * i + 2);
        }
        let took = start.elapsed();
        match other.join() {
            Ok(pinned) => pinned.map(|()| took).map_err(Error::from),
            Err(_) => Err(Error::Failed("the other thread died".into())),
        }
    })
}
