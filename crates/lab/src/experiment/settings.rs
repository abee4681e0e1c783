//! The settings of a workload.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_yaml_ng::Value;

use crate::error::{Error, Result};

/// A workload's settings by name, not yet typed. A name with dots (`--set keys.kind=zipfian`) reaches into a map.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(BTreeMap<String, Value>);

impl Settings {
    /// Of these values.
    pub fn new(values: BTreeMap<String, Value>) -> Settings {
        Settings(values)
    }

    /// As the workload's own type, which should deny unknown fields, so that a slip of the pen is seen.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        self.parse_part().map_err(|error| {
            // Of values nobody knows where they stood; of a text it is known.
            let text = serde_yaml_ng::to_string(&self.0).ok();
            let placed = text.and_then(|text| serde_yaml_ng::from_str::<T>(&text).err());
            let what = placed.unwrap_or(error).to_string();
            // Those are lines of the text that was made here.
            let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
            Error::usage(format!("settings: {what}"))
        })
    }

    pub(super) fn parse_part<T: DeserializeOwned>(&self) -> Result<T, serde_yaml_ng::Error> {
        let map: serde_yaml_ng::Mapping =
            self.0.iter().map(|(key, value)| (Value::String(key.clone()), value.clone())).collect();
        serde_yaml_ng::from_value(Value::Mapping(map))
    }

    /// One setting.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
        let mut value = self.0.get(first)?;
        for part in rest.into_iter().flat_map(|rest| rest.split('.')) {
            value = value.get(part)?;
        }
        Some(value)
    }

    /// Sets one; maps on the way are made.
    ///
    /// Errors: something on the way is no map.
    pub fn set(&mut self, name: &str, value: Value) -> Result<()> {
        let mut parts = name.split('.');
        let first = parts.next().unwrap_or(name);
        let mut slot = self.0.entry(first.to_owned()).or_insert(Value::Null);
        for part in parts {
            if slot.is_null() {
                *slot = Value::Mapping(serde_yaml_ng::Mapping::new());
            }
            let Value::Mapping(map) = slot else {
                return Err(Error::usage(format!("setting {name}: what {part} would belong to is no map")));
            };
            slot = map.entry(Value::String(part.to_owned())).or_insert(Value::Null);
        }
        *slot = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Own {
        clients: u32,
        keys: Keys,
    }

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct Keys {
        kind: String,
    }

    #[test]
    fn dotted_names_reach_into_maps() {
        let mut settings = Settings::default();
        settings.set("clients", Value::from(3)).unwrap();
        settings.set("keys.kind", Value::from("zipfian")).unwrap();
        assert_eq!(settings.get("keys.kind"), Some(&Value::from("zipfian")));
        let own: Own = settings.parse().unwrap();
        assert_eq!(own, Own { clients: 3, keys: Keys { kind: "zipfian".into() } });
        assert!(settings.set("clients.x", Value::from(1)).unwrap_err().to_string().contains("no map"));
        settings.set("client", Value::from(3)).unwrap();
        let error = settings.parse::<Own>().unwrap_err().to_string();
        assert!(error.contains("unknown field `client`"), "{error}");
    }
}
