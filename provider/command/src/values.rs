//! Values that options of several commands take.

use std::time::Duration;

use clap::builder::RangedU64ValueParser;

/// A number of seconds.
pub fn seconds(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |text| match text.parse() {
        Ok(seconds) if (least..=most).contains(&seconds) => Ok(seconds),
        _ => Err(format!("it is a number of seconds from {least} to {most}")),
    }
}

/// As [`seconds`].
pub fn duration(least: f64, most: f64) -> impl Fn(&str) -> Result<Duration, String> + Clone {
    move |text| seconds(least, most)(text).map(Duration::from_secs_f64)
}

/// A count.
pub fn count(least: u64, most: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=most)
}
