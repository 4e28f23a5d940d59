//! What `strait perf --mpi` measured, and the speed that comes of it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::stat::{Stat, bytes, digits};

/// A pattern, the bytes, and the microseconds of a step.
pub type Line = (String, usize, f64);

/// Microseconds of each repetition, by pattern and size; over what the MPI does now, and over strait.
#[derive(Debug, Default)]
pub struct Measured {
    /// The patterns in the order in which they came.
    pub order: Vec<String>,
    values: BTreeMap<(String, usize), [Vec<f64>; 2]>,
}

impl Measured {
    pub fn add(&mut self, side: usize, lines: &[Line]) {
        for (pattern, size, micros) in lines {
            if !self.order.contains(pattern) {
                self.order.push(pattern.clone());
            }
            self.values.entry((pattern.clone(), *size)).or_default()[side].push(*micros);
        }
    }

    /// The sizes of a pattern.
    pub fn sizes(&self, pattern: &str) -> Vec<usize> {
        self.values.keys().filter(|(name, _)| name == pattern).map(|(_, size)| *size).collect()
    }

    fn micros(&self, pattern: &str, size: usize) -> Option<[Stat; 2]> {
        let [now, strait] = self.values.get(&(pattern.into(), size))?;
        Some([Stat::of(now)?, Stat::of(strait)?])
    }

    /// How many times as fast strait is: above 1 it is faster.
    pub fn speed(&self, pattern: &str, size: usize) -> Option<f64> {
        let [now, strait] = self.micros(pattern, size)?;
        (strait.median > 0.0 && now.median > 0.0).then(|| now.median / strait.median)
    }

    /// The geometric mean over the sizes of a pattern.
    pub fn mean(&self, pattern: &str) -> Option<f64> {
        mean(self.sizes(pattern).into_iter().filter_map(|size| self.speed(pattern, size)))
    }

    /// That over all patterns, each of which counts once.
    pub fn all(&self) -> Option<f64> {
        mean(self.order.iter().filter_map(|pattern| self.mean(pattern)))
    }

    /// Rows of which the repetitions differ by more than twice.
    pub fn noisy(&self) -> usize {
        let far = |values: &Vec<f64>| Stat::of(values).is_some_and(|stat| stat.max > 2.0 * stat.min);
        self.values.values().filter(|sides| sides.iter().any(far)).count()
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        let head = ["pattern", "bytes", "now, us", "strait, us", "speed"];
        let _ =
            writeln!(out, "{:<10} {:>7} {:>12} {:>12} {:>7}", head[0], head[1], head[2], head[3], head[4]);
        for pattern in &self.order {
            for size in self.sizes(pattern) {
                let (Some([now, strait]), Some(speed)) =
                    (self.micros(pattern, size), self.speed(pattern, size))
                else {
                    continue;
                };
                let [now, strait] = [now, strait].map(|stat| digits(stat.median));
                let _ = writeln!(out, "{pattern:<10} {:>7} {now:>12} {strait:>12} {speed:>7.2}", bytes(size));
            }
        }
        let _ = write!(out, "\nspeed: above 1 strait is faster. ");
        let (noisy, rows) = (self.noisy(), self.values.len());
        let _ = match self.all() {
            Some(_) if noisy * 4 > rows => writeln!(
                out,
                "In {noisy} of {rows} rows the repetitions differ by more than twice: this host is busy, or has fewer \
                 cores than ranks, and the result says little. Measure on an idle host."
            ),
            Some(all) => {
                let how = if all >= 1.0 { "faster" } else { "slower" };
                writeln!(out, "All patterns, geometric mean: {all:.2}, so strait is {how} here.")
            }
            None => writeln!(out),
        };
        out
    }

    pub fn csv(&self) -> String {
        let mut out = String::from("pattern,bytes,over,unit,median,min,max\n");
        for pattern in &self.order {
            for size in self.sizes(pattern) {
                let sides = self.micros(pattern, size).into_iter().flatten();
                for (side, Stat { median, min, max }) in ["now", "strait"].iter().zip(sides) {
                    let _ = writeln!(out, "{pattern},{size},{side},us,{median:.4},{min:.4},{max:.4}");
                }
            }
        }
        out
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> Measured {
        let mut all = Measured::default();
        let line = |name: &str, size, micros| (name.to_owned(), size, micros);
        all.add(0, &[line("ring", 8, 4.0), line("ring", 4096, 1.0), line("barrier", 0, 2.0)]);
        all.add(1, &[line("ring", 8, 1.0), line("ring", 4096, 1.0), line("barrier", 0, 1.0)]);
        all
    }

    #[test]
    fn speed_is_above_1_where_strait_is_faster() {
        let all = measured();
        assert_eq!((all.speed("ring", 8), all.speed("ring", 4096)), (Some(4.0), Some(1.0)));
        assert!((all.mean("ring").unwrap() - 2.0).abs() < 1e-9);
        assert!((all.all().unwrap() - 2.0).abs() < 1e-9);
        let text = all.text();
        assert!(text.contains("geometric mean: 2.00, so strait is faster here"), "{text}");
        assert!(all.csv().contains("ring,8,strait,us,1.0000"), "{}", all.csv());
        // The other way round.
        let mut slower = Measured::default();
        slower.add(0, &[("ring".into(), 8, 1.0)]);
        slower.add(1, &[("ring".into(), 8, 2.0)]);
        assert!(slower.text().contains("0.50, so strait is slower here"), "{}", slower.text());
    }

    #[test]
    fn a_busy_host_gets_no_verdict() {
        let mut all = measured();
        all.add(1, &[("ring".into(), 8, 800.0)]);
        assert_eq!(all.noisy(), 1);
        let text = all.text();
        assert!(text.contains("In 1 of 3 rows") && !text.contains("so strait is"), "{text}");
    }
}
