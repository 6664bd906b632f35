//! `SavedAlgorithm`: the choice of an algorithm as a line of text, for the same library, device and shape.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

use super::api::Algo;

const MARK: &str = "pygpukit-cublaslt-1";

/// An algorithm and all that it was chosen for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedAlgorithm {
    pub version: usize,
    /// Compute capability and number of SMs.
    pub device: String,
    pub algo: Algo,
    /// Bytes of workspace it was allowed.
    pub workspace: usize,
    pub shape: String,
}

impl fmt::Display for SavedAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MARK} version={} device={} algorithm=", self.version, self.device)?;
        self.algo.iter().flat_map(|word| word.to_le_bytes()).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, " workspace={} {}", self.workspace, self.shape)
    }
}

impl FromStr for SavedAlgorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<SavedAlgorithm> {
        let bad = |what: &str| {
            let shown: String = text.chars().take(80).collect();
            Error::Value(format!("this is not a saved cuBLASLt algorithm ({what}): {shown:?}"))
        };
        let mut words = text.splitn(6, ' ');
        if words.next() != Some(MARK) {
            return Err(bad("another format"));
        }
        let mut field = |name: &str| {
            let word = words.next().and_then(|word| word.strip_prefix(name)).and_then(|rest| rest.strip_prefix('='));
            word.ok_or_else(|| bad(&format!("no {name}")))
        };
        let version = field("version")?.parse().map_err(|_| bad("version"))?;
        let device = field("device")?.to_string();
        let algo = parse_hex(field("algorithm")?).ok_or_else(|| bad("algorithm"))?;
        let workspace = field("workspace")?.parse().map_err(|_| bad("workspace"))?;
        let shape = words.next().ok_or_else(|| bad("no shape"))?.to_string();
        Ok(SavedAlgorithm { version, device, algo, workspace, shape })
    }
}

fn parse_hex(text: &str) -> Option<Algo> {
    if text.len() != 128 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut algo = Algo::default();
    for (word, digits) in algo.iter_mut().zip(text.as_bytes().chunks_exact(16)) {
        *word = u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?.swap_bytes();
    }
    Some(algo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> SavedAlgorithm {
        SavedAlgorithm {
            version: 130_100,
            device: "9.0/132".to_string(),
            algo: [1, 2, u64::MAX, 0x0123_4567_89ab_cdef, 5, 6, 7, 8],
            workspace: 0,
            shape: "m=1 n=2 k=3".to_string(),
        }
    }

    #[test]
    fn text_round_trips() {
        let text = saved().to_string();
        assert_eq!(text.parse::<SavedAlgorithm>().unwrap(), saved());
        assert!(text.contains("algorithm=01000000000000000200"), "bytes as in memory: {text}");
    }

    #[test]
    fn damaged_text_is_refused_with_the_field() {
        let text = saved().to_string();
        for (from, to, part) in [
            (MARK, "other-1", "another format"),
            ("version=130100", "version=x", "version"),
            (" device=", " machine=", "no device"),
            ("algorithm=0100", "algorithm=01", "algorithm"),
            ("algorithm=0100", "algorithm=+100", "algorithm"),
            ("workspace=0", "workspace=-1", "workspace"),
        ] {
            let error = text.replacen(from, to, 1).parse::<SavedAlgorithm>().unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(text.split(" m=").next().unwrap().parse::<SavedAlgorithm>().is_err());
        assert!("".parse::<SavedAlgorithm>().is_err());
    }
}
