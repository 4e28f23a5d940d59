//! What a kernel sees: numbers of messages in the device's memory, which come behind the bytes.

use strait_rpipe::OnDevice;

use super::*;

/// Options of a reader whose messages kernels wait for.
fn with_numbers(slots: usize) -> PipeOptions {
    PipeOptions { numbers: true, slots: Some(slots), heap: Some(1 << 16), ..end(Side::Reader, true) }
}

/// The bytes of message `n`, if it is announced by now.
fn announced(cu: &Driver, of: &OnDevice, n: u64) -> Option<Vec<u8>> {
    let at = of.numbers.unwrap() + 16 * (n as usize % of.slots);
    let words: Vec<u32> =
        cu.read(at, 16).chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect();
    let number = (n + 1) as u32;
    if words[1] != number || words[3] != number {
        return None;
    }
    let (len, place) = (words[0] as usize, words[2] as usize * of.granule);
    assert!(place + len <= of.heap_len);
    Some(if len == 0 { Vec::new() } else { cu.read(of.heap + place, len) })
}

#[test]
fn numbers_of_messages_are_in_the_devices_memory_behind_their_bytes() {
    if !is_real() {
        // SAFETY: as in the other test that has a slow device.
        unsafe { env::set_var("CUDA_STAND_IN_DELAY_US", "500") };
    }
    let (_alone, cu) = alone();
    let [a, b] = job("numbers", &Settings::default());
    const MESSAGES: usize = 50;
    thread::scope(|s| {
        s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&a, 1, &end(Side::Writer, false)).unwrap();
            for n in 0..MESSAGES {
                write(&cu, &mut pipe, false, &pattern(n, n * 37 % 3000)).unwrap();
            }
            let block = pipe.alloc(8, 1, patience()).unwrap();
            let refused = pipe.write_for(block, 3).unwrap_err();
            assert!(matches!(&refused, Error::Invalid(why) if why.contains("kernels")), "{refused:?}");
        });
        s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&b, 0, &with_numbers(8)).unwrap();
            for n in 0..MESSAGES as u64 {
                let of = pipe.on_device(patience()).unwrap();
                assert_eq!((of.next, of.slots, of.device), (n, 8, 0));
                let expected = pattern(n as usize, n as usize * 37 % 3000);
                let begun = std::time::Instant::now();
                let by_kernel = loop {
                    match announced(&cu, &of, n) {
                        Some(bytes) => break bytes,
                        None => assert!(begun.elapsed() < LIMIT, "message {n}"),
                    }
                };
                assert!(by_kernel == expected, "message {n}");
                let (block, len) = pipe.read(usize::MAX, patience()).unwrap();
                assert!(look(&cu, &mut pipe, true, block, len) == expected);
                assert!(announced(&cu, &of, n).is_some(), "it stays until the block is freed");
                pipe.free(block).unwrap();
            }
        });
    });
}

#[test]
fn numbers_are_for_readers_of_a_devices_memory() {
    let (_alone, _cu) = alone();
    let [a, _b] = job("no-numbers", &Settings::default());
    for options in [
        PipeOptions { numbers: true, ..end(Side::Reader, false) },
        PipeOptions { numbers: true, ..end(Side::Writer, true) },
    ] {
        let refused = Pipe::open(&a, 1, &options).unwrap_err();
        assert!(matches!(&refused, Error::Invalid(why) if why.contains("reader's heap")), "{refused:?}");
    }
}
