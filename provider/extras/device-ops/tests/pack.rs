//! Packing and unpacking, over the stand-in for CUDA's driver, against the type map on the host.
#![cfg(not(loom))]

mod support;

use std::ops::Range;

use cuda_stand_in::driver::Driver;
use device_ops::{Element, Error, Layout, Level, Memory, Piece, pack, unpack};
use hmem::cuda::Stream;
use proptest::prelude::*;
use support::{alone, memory, stream};

fn piece(offset: i64, length: u64) -> Piece {
    Piece { offset, length }
}

fn level(count: u64, stride: i64) -> Level {
    Level { count, stride }
}

#[derive(Clone, Debug)]
struct Datatype {
    pieces: Vec<Piece>,
    /// From the innermost.
    levels: Vec<Level>,
    count: u64,
    extent: i64,
}

impl Datatype {
    /// The offset of each packed byte, in order.
    fn map(&self) -> Vec<i64> {
        let block = self.pieces.iter().flat_map(|p| (0..p.length as i64).map(move |i| p.offset + i));
        let mut all: Vec<i64> = block.collect();
        for l in self.levels.iter().chain([&level(self.count, self.extent)]) {
            let inner = all;
            let each = (0..l.count as i64).flat_map(|i| inner.iter().map(move |o| o + i * l.stride));
            all = each.collect();
        }
        all
    }

    fn layout(&self) -> Layout {
        Layout::new(&self.pieces, &self.levels).unwrap()
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

/// Packs and unpacks `range`, with the buffer's lowest byte at `shift`, and the packed ones at
/// `packed_shift`.
fn check(
    cu: Driver,
    stream: Stream,
    of: &Datatype,
    range: Range<usize>,
    shift: usize,
    packed_shift: usize,
    scatter: bool,
) {
    let map = of.map();
    let layout = of.layout();
    let (low, high) = (map.iter().min().copied().unwrap_or(0), map.iter().max().map_or(0, |m| m + 1));
    let elements = Element { layout: &layout, count: of.count, extent: of.extent };
    assert_eq!(layout.size() * of.count, map.len() as u64);

    let room = (high - low) as usize + shift + 16;
    let (buffer, packed) = (cu.alloc(room), cu.alloc(range.len() + packed_shift + 16));
    let origin = buffer.wrapping_add(shift).wrapping_add_signed(-low as isize);
    // SAFETY: as of `memory`.
    let typed = unsafe { Memory::around(origin, low, high) };
    let (there, before) = (pattern(room, 1), pattern(range.len() + packed_shift + 16, 2));
    cu.write(buffer, &there);
    cu.write(packed, &before);
    let at = |offset: i64| (offset - low) as usize + shift;
    let target = memory(packed + packed_shift, range.len());
    let bytes = range.start as u64..range.end as u64;
    pack(stream, elements, typed, bytes.clone(), target).unwrap();
    stream.wait().unwrap();
    let found = cu.read(packed, before.len());
    let mut wanted = before.clone();
    for (to, from) in wanted[packed_shift..].iter_mut().zip(&map[range.clone()]) {
        *to = there[at(*from)];
    }
    assert!(found == wanted, "packed {of:?}, {range:?}");

    if scatter {
        let bytes_in = pattern(range.len(), 90);
        cu.write(packed + packed_shift, &bytes_in);
        unpack(stream, elements, typed, bytes, target).unwrap();
        stream.wait().unwrap();
        let mut wanted = there;
        for (from, to) in bytes_in.iter().zip(&map[range]) {
            wanted[at(*to)] = *from;
        }
        assert!(cu.read(buffer, room) == wanted, "unpacked {of:?}");
    }
    cu.free(buffer);
    cu.free(packed);
}

#[test]
fn datatypes_of_every_form_are_packed_and_unpacked() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let one = |offset, length, levels: &[Level], count, extent| Datatype {
        pieces: vec![piece(offset, length)],
        levels: levels.to_vec(),
        count,
        extent,
    };
    let column = one(0, 8, &[level(64, 512)], 3, 8);
    let face = one(40, 16, &[level(5, 64), level(7, 1024)], 2, 16384);
    let deep = one(3, 4, &[level(3, 8), level(2, 40), level(4, 96), level(2, 1000)], 2, 4001);
    let list = Datatype {
        pieces: vec![piece(0, 4), piece(12, 8), piece(40, 4), piece(64, 32)],
        levels: vec![level(3, 128)],
        count: 4,
        extent: 512,
    };
    let backwards =
        Datatype { pieces: vec![piece(96, 16), piece(-32, 7)], levels: vec![], count: 5, extent: -256 };
    let contiguous = one(16, 100, &[level(4, 100)], 3, 400);
    let none = one(0, 0, &[level(4, 8)], 3, 8);
    let never = one(0, 8, &[level(0, 8)], 3, 8);
    let no_elements = one(0, 8, &[level(3, 16)], 0, 64);
    for of in [column, face, deep, list, backwards, contiguous, none, never, no_elements] {
        let n = of.map().len();
        for (range, shift, packed_shift) in [
            (0..n, 0, 0),
            (0..n, 1, 0),
            (0..n, 8, 4),
            (n / 3..n - n / 5, 0, 0),
            (n / 2..n / 2, 0, 0),
            (n / 16 * 8..n, 0, 8),
        ] {
            check(cu, stream, &of, range, shift, packed_shift, true);
        }
    }
}

#[test]
fn more_units_than_the_grid_has_threads_are_all_moved() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    // 2 multiprocessors of 8 blocks of 256 threads: 4096 units of one byte at a time.
    let of = Datatype { pieces: vec![piece(1, 3)], levels: vec![level(3000, 5)], count: 2, extent: 15_001 };
    check(cu, stream, &of, 0..18_000, 0, 0, true);
}

/// Packed bytes have numbers above 2^32 here: elements that lie at the same place, packed again and again.
#[test]
fn bytes_with_numbers_of_more_than_32_bits_are_packed() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let (buffer, packed) = (cu.alloc(64), cu.alloc(64));
    let there = pattern(64, 4);
    cu.write(buffer, &there);
    let lists = [vec![piece(1, 3), piece(8, 2)], vec![piece(1, 5)]];
    for (pieces, each) in lists.iter().zip([[1, 2, 3, 8, 9], [1, 2, 3, 4, 5]]) {
        let layout = Layout::new(pieces, &[level(2, 16)]).unwrap();
        let elements = Element { layout: &layout, count: 1 << 33, extent: 0 };
        let from = (1u64 << 33) + 3;
        pack(stream, elements, memory(buffer, 64), from..from + 40, memory(packed, 40)).unwrap();
        stream.wait().unwrap();
        let offset = |n: u64| each[(n % 5) as usize] + 16 * (n / 5 % 2) as usize;
        let wanted: Vec<u8> = (from..from + 40).map(|n| there[offset(n)]).collect();
        assert_eq!(cu.read(packed, 40), wanted);
    }
}

#[test]
fn equal_datatypes_are_equal_layouts() {
    let vector = Layout::new(&[piece(0, 8)], &[level(4, 32)]).unwrap();
    let indexed: Vec<Piece> = (0..4).map(|i| piece(32 * i, 8)).collect();
    assert_eq!(vector, Layout::new(&indexed, &[]).unwrap());
    let halves: Vec<Piece> = (0..8).map(|i| piece(32 * (i / 2) + 4 * (i % 2), 4)).collect();
    assert_eq!(vector, Layout::new(&halves, &[]).unwrap());
    assert_eq!(
        vector,
        Layout::new(&[piece(0, 4)], &[level(2, 4), level(2, 32), level(1, 9), level(2, 64)]).unwrap()
    );
    assert_ne!(vector, Layout::new(&[piece(0, 8)], &[level(4, 40)]).unwrap());
    let whole = Layout::new(&[piece(5, 2)], &[level(3, 2), level(10, 6)]).unwrap();
    assert!(whole.is_contiguous() && whole.size() == 60 && whole.bounds() == (5, 65));
    assert!(!vector.is_contiguous());
    let (pieces, levels) = vector.form();
    assert_eq!((pieces, levels), (&[piece(0, 8)][..], &[level(4, 32)][..]));
}

#[test]
fn what_has_no_room_or_no_size_is_refused_with_a_sentence() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let layout = Layout::new(&[piece(0, 8)], &[level(4, 32)]).unwrap();
    let elements = Element { layout: &layout, count: 2, extent: 128 };
    let (buffer, packed) = (cu.alloc(1024), cu.alloc(64));
    let refused = |typed, range, to| pack(stream, elements, typed, range, to).unwrap_err().to_string();
    assert!(refused(memory(buffer, 231), 0..64, memory(packed, 64)).contains("pass all of the buffer"));
    assert!(refused(memory(buffer, 232), 0..64, memory(packed, 63)).contains("packed buffer"));
    assert!(refused(memory(buffer, 232), 0..65, memory(packed, 64)).contains("there are 64"));
    let mut backwards = 0..64;
    (backwards.start, backwards.end) = (9, 8);
    assert!(refused(memory(buffer, 232), backwards, memory(packed, 64)).contains("asked for"));
    pack(stream, elements, memory(buffer, 232), 0..64, memory(packed, 64)).unwrap();
    stream.wait().unwrap();

    let endless = Element { layout: &layout, count: u64::MAX, extent: 128 };
    let e = pack(stream, endless, memory(buffer, 232), 0..64, memory(packed, 64)).unwrap_err();
    assert!(e.to_string().contains("2^63"), "{e}");
    for (pieces, levels) in [
        (vec![piece(i64::MAX, 8)], vec![]),
        (vec![piece(0, u64::MAX)], vec![]),
        (vec![piece(0, 8)], vec![level(u64::MAX, 16)]),
        (vec![piece(0, 8)], vec![level(4, i64::MAX)]),
        (vec![piece(0, 8)], vec![level(4, i64::MIN)]),
        (vec![piece(0, 1)], vec![level(1 << 40, 3), level(2, 1), level(2, 5), level(2, 7), level(3, 100)]),
    ] {
        let e = Layout::new(&pieces, &levels).unwrap_err();
        assert!(matches!(&e, Error::Argument(why) if why.starts_with("a datatype")), "{e}");
    }
}

#[test]
fn a_list_is_copied_to_a_device_once_and_its_failure_is_an_error() {
    let (_alone, cu) = alone();
    let stream = stream(cu);
    let layout = Layout::new(&[piece(0, 4), piece(12, 8)], &[]).unwrap();
    let elements = Element { layout: &layout, count: 3, extent: 32 };
    let (typed, packed) = (memory(cu.alloc(96), 96), memory(cu.alloc(36), 36));
    cu.fail(c"cuMemAlloc_v2", 1, 2);
    let e = pack(stream, elements, typed, 0..36, packed).unwrap_err();
    assert!(e.code() == Some(2) && e.to_string().contains("allocating device memory"), "{e}");
    cu.fail(c"cuMemAlloc_v2", 0, 0);
    pack(stream, elements, typed, 0..36, packed).unwrap();
    let before = cu.calls(c"cuMemAlloc_v2");
    pack(stream, elements, typed, 0..36, packed).unwrap();
    unpack(stream, elements, typed, 0..36, packed).unwrap();
    stream.wait().unwrap();
    assert_eq!(cu.calls(c"cuMemAlloc_v2"), before);
}

/// Datatypes whose bytes do not overlap, so that they can be unpacked: gaps and lengths in multiples of a
/// unit.
fn datatype() -> impl Strategy<Value = (Datatype, bool)> {
    let unit = prop::sample::select(vec![1i64, 2, 4, 8, 16]);
    let pieces = prop::collection::vec((0..4i64, 1..4i64), 1..6);
    let levels = prop::collection::vec((1..4u64, 0..3i64), 0..5);
    (unit, pieces, levels, 0..4u64, 0..3i64, any::<bool>(), any::<bool>(), -3..4i64).prop_map(
        |(unit, pieces, levels, count, gap, reversed, overlapping, lower)| {
            let mut end = lower;
            let mut all: Vec<Piece> = pieces
                .iter()
                .map(|(gap, length)| {
                    let offset = end + gap;
                    end = offset + length;
                    piece(offset * unit, (length * unit) as u64)
                })
                .collect();
            if reversed {
                all.reverse();
            }
            let mut span = end - lower;
            let mut stride_of = |count: u64, gap: i64| {
                let stride = if overlapping { span / 2 } else { span + gap };
                span += stride * (count.max(1) as i64 - 1);
                stride * unit
            };
            let levels = levels.iter().map(|(count, gap)| level(*count, stride_of(*count, *gap))).collect();
            let extent = stride_of(count, gap);
            (Datatype { pieces: all, levels, count, extent }, !overlapping)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn random_datatypes_are_packed_and_unpacked(
        (of, scatter) in datatype(),
        cut in [0..1000usize, 0..1000],
        shifts in prop::sample::select(vec![[0, 0], [8, 0], [0, 4], [2, 2], [1, 0], [5, 3]]),
    ) {
        let (_alone, cu) = alone();
        let n = of.map().len();
        let [a, b] = cut.map(|c| n * c / 999);
        check(cu, stream(cu), &of, a.min(b)..a.max(b), shifts[0], shifts[1], scatter);
    }
}
