//! The scenarios that are built in.

use crate::options::Options;

macro_rules! scenarios {
    ($($name:literal)*) => {
        /// Names and texts of the built-in scenarios.
        pub const SCENARIOS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../scenarios/", $name, ".toml")))),*];
    };
}

scenarios! {
    "clean" "lossy-wifi" "leo-satellite" "cellular-handover" "flapping" "partition" "slow-receiver"
    "crash-storm" "hard" "full-faults" "hour" "thousand" "bursts" "relay"
}

impl Options {
    /// The built-in scenario of a name.
    ///
    /// # Errors
    /// There is none, and those there are.
    pub fn builtin(name: &str) -> Result<Self, String> {
        let found = SCENARIOS.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = found else {
            let names: Vec<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
            return Err(format!("there is no scenario {name:?}; there are {}", names.join(", ")));
        };
        Self::from_toml(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_built_in_scenario_can_be_read_and_has_its_name() {
        for (name, _) in SCENARIOS {
            assert_eq!(Options::builtin(name).unwrap().name, *name);
        }
        assert!(Options::builtin("clear").unwrap_err().contains("lossy-wifi"));
    }
}
