//! Every kernel on a real device against the host, and the bandwidth of some: what `ci/gpu/device-ops` runs.
//! Needs the driver alone. With `stand-in` as its argument it runs over the stand-in for that, to be tried.

#[path = "../tests/support/host.rs"]
mod host;

use std::time::{Duration, Instant};

use cuda_stand_in::driver::Driver;
use device_ops::{Element, Layout, Level, Memory, Op, Piece, Type, pack, reduce, unpack};
use hmem::cuda::{self, Stream};

struct Run {
    cu: Driver,
    stream: Stream,
    passed: usize,
    failed: usize,
}

fn memory(at: usize, len: usize) -> Memory {
    // SAFETY: what is allocated here is freed after the stream was waited for.
    unsafe { Memory::new(at, len) }
}

impl Run {
    fn ended(&mut self, what: &str, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(why) => {
                self.failed += 1;
                println!("FAILED {what}: {why}");
            }
        }
    }

    fn wait(&self) -> Result<(), String> {
        self.stream.wait().map_err(|e| format!("the stream: {e}"))
    }

    fn reduction(&self, op: Op, ty: Type, count: usize, shift: usize) -> Result<(), String> {
        let len = count * ty.extent() as usize;
        let (a, b) = (host::elements(ty, count, 5), host::elements(ty, count, 17));
        let at = [(); 3].map(|()| self.cu.alloc(len + 16));
        let [x, y, to] = at.map(|at| at + shift);
        let mut wanted = vec![0xa5; len];
        self.cu.write(to, &wanted);
        self.cu.write(x, &a);
        self.cu.write(y, &b);
        let begun =
            reduce(self.stream, op, ty, memory(to, len), memory(x, len), memory(y, len), count as u64);
        begun.map_err(|e| e.to_string())?;
        self.wait()?;
        let found = self.cu.read(to, len);
        at.into_iter().for_each(|at| self.cu.free(at));
        host::reduce(op, ty, &a, &b, &mut wanted);
        let n = ty.extent() as usize;
        match host::difference(op, ty, &found, &wanted) {
            None => Ok(()),
            Some(i) => {
                let part = |v: &[u8]| format!("{:02x?}", &v[i * n..(i + 1) * n]);
                Err(format!(
                    "element {i}: {} and {} gave {}, not {}",
                    part(&a),
                    part(&b),
                    part(&found),
                    part(&wanted)
                ))
            }
        }
    }

    fn reductions(&mut self, count: usize) {
        for op in Op::ALL {
            for ty in Type::ALL.into_iter().filter(|ty| op.takes(*ty)) {
                for shift in [0, 8, 3] {
                    let outcome = self.reduction(op, ty, count, shift);
                    self.ended(&format!("{op:?} of {ty:?} at +{shift}"), outcome);
                }
            }
        }
    }

    /// Packs, and unpacks into zeros, which gives the buffer's bytes back where there are elements.
    fn datatype(&self, layout: &Layout, count: u64, extent: i64, shift: usize) -> Result<(), String> {
        let (room, size) = ((extent * count as i64) as usize, (layout.size() * count) as usize);
        let (buffer, packed, back) =
            (self.cu.alloc(room + 16), self.cu.alloc(size + 16), self.cu.alloc(room + 16));
        let there: Vec<u8> = (0..room).map(|i| (i * 7 + i / 251 + 1) as u8 | 1).collect();
        self.cu.write(buffer + shift, &there);
        self.cu.write(back + shift, &vec![0; room]);
        let elements = Element { layout, count, extent };
        let bytes = 0..size as u64;
        let there_and =
            pack(self.stream, elements, memory(buffer + shift, room), bytes.clone(), memory(packed, size));
        there_and.map_err(|e| e.to_string())?;
        let back_again =
            unpack(self.stream, elements, memory(back + shift, room), bytes, memory(packed, size));
        back_again.map_err(|e| e.to_string())?;
        self.wait()?;
        let (found, returned) = (self.cu.read(packed, size), self.cu.read(back + shift, room));
        [buffer, packed, back].into_iter().for_each(|at| self.cu.free(at));
        let (pieces, levels) = layout.form();
        let mut map: Vec<i64> =
            pieces.iter().flat_map(|p| (0..p.length as i64).map(|i| p.offset + i)).collect();
        for l in levels.iter().chain([&Level { count, stride: extent }]) {
            let inner = map;
            let each = (0..l.count as i64).flat_map(|i| inner.iter().map(move |o| o + i * l.stride));
            map = each.collect();
        }
        let mut wanted = vec![0; room];
        for (i, offset) in map.iter().enumerate() {
            wanted[*offset as usize] = there[*offset as usize];
            if found[i] != there[*offset as usize] {
                return Err(format!(
                    "packed byte {i} is {:#x}, not {:#x}",
                    found[i], there[*offset as usize]
                ));
            }
        }
        match returned.iter().zip(&wanted).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!("unpacked byte {i} is {:#x}, not {:#x}", returned[i], wanted[i])),
        }
    }

    fn datatypes(&mut self) {
        for (pieces, levels) in [
            (vec![(0i64, 8u64)], vec![(100u64, 64i64)]),
            (vec![(4, 12)], vec![(9, 32), (11, 512)]),
            (vec![(0, 16)], vec![(3, 32), (4, 128), (5, 1024)]),
            (vec![(0, 4), (12, 8), (40, 4), (64, 32)], vec![]),
            (vec![(0, 1), (3, 2)], vec![(7, 8), (3, 100)]),
            (vec![(0, 3), (16, 16)], vec![(7, 40), (3, 400), (2, 1600)]),
        ] {
            let pieces: Vec<Piece> =
                pieces.into_iter().map(|(offset, length)| Piece { offset, length }).collect();
            let levels: Vec<Level> =
                levels.into_iter().map(|(count, stride)| Level { count, stride }).collect();
            match Layout::new(&pieces, &levels) {
                Err(e) => self.ended("a datatype", Err(e.to_string())),
                Ok(layout) => {
                    let extent = (layout.bounds().1 + 15) & !15;
                    for (count, shift) in [(1, 0), (5, 0), (3000, 0), (40, 8), (40, 5)] {
                        let outcome = self.datatype(&layout, count, extent, shift);
                        self.ended(&format!("datatype {pieces:?} {levels:?}, {count} at +{shift}"), outcome);
                    }
                }
            }
        }
    }

    /// Seconds of one, of many that are queued one behind the other.
    fn time(&self, most: u64, work: impl Fn() -> Result<(), String>) -> Result<f64, String> {
        for _ in 0..3 {
            work()?;
        }
        self.wait()?;
        let (from, mut n) = (Instant::now(), 0u64);
        while n < most && (n < 5 || from.elapsed() < Duration::from_millis(30)) {
            work()?;
            n += 1;
            if n % 32 == 0 {
                self.wait()?;
            }
        }
        self.wait()?;
        Ok(from.elapsed().as_secs_f64() / n as f64)
    }

    fn bandwidth(&mut self, sizes: &[usize], most: u64) {
        let largest = sizes.iter().copied().max().unwrap_or(0);
        let [a, b, to] = [(); 3].map(|()| self.cu.alloc(2 * largest));
        for at in [a, b] {
            self.cu.write(at, &vec![0; 2 * largest]);
        }
        println!(
            "# GB/s that the memory sees: 3 bytes for each byte of a reduction, 2 for each packed or copied"
        );
        println!(
            "# bytes, us and GB/s of: copy; sum of f32, f64, bf16; pack of blocks of 8, 64, 512 bytes, one of two"
        );
        for &len in sizes {
            let mut line = format!("{len:>10}");
            let copy = self.time(most, || {
                // SAFETY: both ranges are allocated above.
                unsafe { self.stream.copy(to, a, len) }.map_err(|e| e.to_string())
            });
            let mut column = |seconds: Result<f64, String>, moved: usize| match seconds {
                Ok(s) => line += &format!(" {:>9.2} {:>7.1}", s * 1e6, moved as f64 / s / 1e9),
                Err(why) => {
                    line += " failed";
                    println!("FAILED {why}");
                }
            };
            column(copy, 2 * len);
            for ty in [Type::F32, Type::F64, Type::BF16] {
                let m = |at| memory(at, len);
                let count = len as u64 / ty.extent();
                let one =
                    || reduce(self.stream, Op::Sum, ty, m(to), m(a), m(b), count).map_err(|e| e.to_string());
                column(self.time(most, one), 3 * len);
            }
            for block in [8, 64, 512].into_iter().filter(|b| *b <= len as u64) {
                let level = Level { count: len as u64 / block, stride: 2 * block as i64 };
                let Ok(layout) = Layout::new(&[Piece { offset: 0, length: block }], &[level]) else {
                    continue;
                };
                let elements = Element { layout: &layout, count: 1, extent: 0 };
                let one = || {
                    let (typed, packed) = (memory(a, 2 * len), memory(to, len));
                    pack(self.stream, elements, typed, 0..len as u64, packed).map_err(|e| e.to_string())
                };
                column(self.time(most, one), 2 * len);
            }
            println!("{line}");
        }
        [a, b, to].into_iter().for_each(|at| self.cu.free(at));
    }
}

fn main() {
    let stand_in = std::env::args().nth(1).as_deref() == Some("stand-in");
    let cu = if stand_in { Driver::start() } else { Driver::start_real() };
    cuda::find_driver();
    // SAFETY: it is never destroyed.
    let stream = unsafe { Stream::new(cu.stream()) }.expect("a stream");
    let mut run = Run { cu, stream, passed: 0, failed: 0 };
    let from = Instant::now();
    run.reductions(if stand_in { 50 } else { 100_003 });
    println!("# reductions: {:.1} s, with the compilation of their kernels", from.elapsed().as_secs_f64());
    run.datatypes();
    let sizes: Vec<usize> = (0..14).map(|i| 8 << (2 * i)).map(|n: usize| n.min(256 << 20)).collect();
    run.bandwidth(if stand_in { &sizes[..4] } else { &sizes }, if stand_in { 1 } else { 2000 });
    println!("{} passed, {} failed", run.passed, run.failed);
    std::process::exit(i32::from(run.failed > 0));
}
