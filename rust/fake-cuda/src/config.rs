//! Settings of the fake driver, and the calls it was told to fail.

use std::collections::HashMap;

/// A call that will fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub call: String,
    /// Number of the failing call, counted from the first call ever.
    pub at: u64,
    pub code: i32,
    pub onwards: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub devices: i32,
    pub capability: (i32, i32),
    pub version: i32,
    pub memory: usize,
    pub withhold: Vec<String>,
    pub failures: Vec<Failure>,
    pub lazy: u32,
    pub lane_sms: Option<u32>,
    pub cublas_version: usize,
    /// Bytes of workspace that the check of an algorithm states at least.
    pub cublas_check: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            devices: 1,
            capability: (9, 0),
            version: 13000,
            memory: 8 << 30,
            withhold: Vec::new(),
            failures: Vec::new(),
            lazy: 0,
            lane_sms: None,
            cublas_version: 130_100,
            cublas_check: 0,
        }
    }
}

pub(crate) const NAMES: [&str; 10] = [
    "DEVICES",
    "CAPABILITY",
    "VERSION",
    "MEMORY",
    "WITHHOLD",
    "FAIL",
    "LAZY",
    "LANE_SMS",
    "CUBLAS_VERSION",
    "CUBLAS_CHECK",
];

impl Config {
    /// Change one setting; `counts` are the calls made so far, from which FAIL counts on.
    pub fn set(&mut self, name: &str, value: &str, counts: &HashMap<String, u64>) -> Result<(), String> {
        let bad = || format!("fake-cuda: {name}={value:?} is not understood");
        let value = value.trim();
        match name {
            "DEVICES" => self.devices = value.parse().map_err(|_| bad())?,
            "VERSION" => self.version = value.parse().map_err(|_| bad())?,
            "MEMORY" => self.memory = value.parse().map_err(|_| bad())?,
            "LAZY" => self.lazy = value.parse().map_err(|_| bad())?,
            "CUBLAS_VERSION" => self.cublas_version = value.parse().map_err(|_| bad())?,
            "CUBLAS_CHECK" => self.cublas_check = value.parse().map_err(|_| bad())?,
            "LANE_SMS" => self.lane_sms = Some(value.parse().map_err(|_| bad())?),
            "CAPABILITY" => {
                let (major, minor) = value.split_once('.').ok_or_else(bad)?;
                self.capability = (major.parse().map_err(|_| bad())?, minor.parse().map_err(|_| bad())?);
            }
            "WITHHOLD" => self.withhold = items(value).map(|call| base_name(call).to_string()).collect(),
            "FAIL" => {
                self.failures =
                    items(value)
                        .map(|item| parse_failure(item, counts).ok_or_else(bad))
                        .collect::<Result<Vec<Failure>, String>>()?;
            }
            _ => return Err(format!("fake-cuda: no setting {name:?}; there are {}", NAMES.join(", "))),
        }
        Ok(())
    }

    /// The code this call must return instead of working.
    pub fn failure_of(&self, call: &str, count: u64) -> Option<i32> {
        self.failures.iter().find(|f| f.call == call && (f.at == count || f.onwards && count > f.at)).map(|f| f.code)
    }
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn parse_failure(item: &str, counts: &HashMap<String, u64>) -> Option<Failure> {
    let fields: Vec<&str> = item.split(':').collect();
    let (call, nth, code, onwards) = match fields.as_slice() {
        [call, nth, code] => (call, nth, code, false),
        [call, nth, code, "*"] => (call, nth, code, true),
        _ => return None,
    };
    let call = base_name(call).to_string();
    let nth: u64 = nth.parse().ok().filter(|n| *n > 0)?;
    let at = counts.get(&call).copied().unwrap_or(0) + nth;
    Some(Failure { call, at, code: code.parse().ok()?, onwards })
}

/// "cuMemGetInfo" for "cuMemGetInfo_v2": calls are counted and named without their revision.
pub(crate) fn base_name(export: &str) -> &str {
    match export.rsplit_once("_v") {
        Some((base, revision)) if !revision.is_empty() && revision.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => export,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_count_from_the_moment_they_are_set() {
        let mut config = Config::default();
        let counts = HashMap::from([("cuMemCreate".to_string(), 5)]);
        config.set("FAIL", "cuMemCreate:3:2, cuLaunchKernelEx:1:700:*", &counts).unwrap();
        assert_eq!(config.failure_of("cuMemCreate", 7), None);
        assert_eq!(config.failure_of("cuMemCreate", 8), Some(2));
        assert_eq!(config.failure_of("cuMemCreate", 9), None);
        assert_eq!(config.failure_of("cuLaunchKernelEx", 44), Some(700));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let mut config = Config::default();
        for (name, value) in
            [("CAPABILITY", "9"), ("FAIL", "cuInit"), ("FAIL", "cuInit:0:1"), ("LAZY", "x"), ("X", "1")]
        {
            assert!(config.set(name, value, &HashMap::new()).is_err(), "{name}={value}");
        }
        config.set("CAPABILITY", "7.5", &HashMap::new()).unwrap();
        assert_eq!(config.capability, (7, 5));
    }

    #[test]
    fn revisions_are_dropped_from_names() {
        assert_eq!(base_name("cuMemGetInfo_v2"), "cuMemGetInfo");
        assert_eq!(base_name("cuInit"), "cuInit");
        assert_eq!(base_name("x_vm"), "x_vm");
    }
}
