//! Ends that are closed while something is on its way, over frames, where that takes both processes.

use std::thread;
use std::time::Duration;

use super::tests::{job, patience, read, write};
use crate::{Error, Pipe, PipeOptions, Settings, Side};

fn frames() -> Settings {
    Settings { backend: "strait:frames".into(), heap: 8 << 20, ..Settings::default() }
}

#[test]
fn a_reader_that_closes_one_pipe_keeps_the_others() {
    let [a, b] = job("others", &frames());
    thread::scope(|s| {
        s.spawn(|| {
            let mut one = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            let mut two = Pipe::open(&b, 0, &PipeOptions::new(Side::Reader)).unwrap();
            assert_eq!(read(&mut one).unwrap(), b"first");
            one.close().unwrap();
            assert_eq!(read(&mut two).unwrap(), b"second");
        });
        let mut one = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        let mut two = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
        write(&mut one, b"first").unwrap();
        let fault = loop {
            if let Err(fault) = write(&mut one, &[7; 5000]) {
                break fault;
            }
        };
        assert!(matches!(fault, Error::Gone(_)), "{fault:?}");
        write(&mut two, b"second").unwrap();
        two.flush(patience()).unwrap();
        for _ in 0..300 {
            a.progress().unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
}
