//! Few numbers about a few numbers.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Stat {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Stat {
    /// `None` without values.
    pub fn of(values: &[f64]) -> Option<Stat> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        };
        Some(Stat { median, min, max })
    }
}

/// Three digits that count, or all before the point.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// `64`, `4K`, `1M`: bytes, without a unit where it is a whole number of it.
pub fn bytes(size: usize) -> String {
    for (shift, unit) in [(30, 'G'), (20, 'M'), (10, 'K')] {
        if size >> shift > 0 && size % (1 << shift) == 0 {
            return format!("{}{unit}", size >> shift);
        }
    }
    size.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Stat::of(&[]), None);
        assert_eq!(Stat::of(&[3.0]), Some(Stat { median: 3.0, min: 3.0, max: 3.0 }));
        assert_eq!(Stat::of(&[3.0, 1.0, 2.0]), Some(Stat { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Stat::of(&[4.0, 1.0, 2.0, 9.0]), Some(Stat { median: 3.0, min: 1.0, max: 9.0 }));
    }

    #[test]
    fn numbers() {
        assert_eq!(digits(0.0), "0.00");
        assert_eq!(digits(0.0314), "0.031");
        assert_eq!(digits(0.314), "0.31");
        assert_eq!(digits(31.41), "31.4");
        assert_eq!(digits(31415.9), "31416");
        assert_eq!(bytes(8), "8");
        assert_eq!(bytes(1000), "1000");
        assert_eq!(bytes(4096), "4K");
        assert_eq!(bytes(1536), "1536");
        assert_eq!(bytes(4 << 20), "4M");
        assert_eq!(bytes(1 << 30), "1G");
    }
}
