//! Write concerns.

use std::fmt;

use serde::Deserialize;
use sheaf_bson::{DocBuf, DocWriter};

/// `w` of a write concern.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum W {
    /// That many members.
    Nodes(u32),
    /// "majority", or a mode of the replica set's configuration.
    Tag(String),
}

impl W {
    /// A number of members, or else a tag.
    pub fn parse(text: &str) -> W {
        text.parse().map_or_else(|_| W::Tag(text.to_owned()), W::Nodes)
    }
}

/// What a write waits for. What is `None` is not sent, so the server's default decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteConcern {
    /// How many members.
    pub w: Option<W>,
    /// Whether for the journal.
    pub j: Option<bool>,
    /// Milliseconds to wait.
    #[serde(rename = "wtimeout")]
    pub wtimeout_ms: Option<u64>,
}

impl WriteConcern {
    /// `{w: n}`.
    pub fn nodes(n: u32) -> WriteConcern {
        WriteConcern { w: Some(W::Nodes(n)), ..WriteConcern::default() }
    }

    /// `{w: 1, j: true}`.
    pub fn journaled() -> WriteConcern {
        WriteConcern { w: Some(W::Nodes(1)), j: Some(true), ..WriteConcern::default() }
    }

    /// `{w: "majority"}`.
    pub fn majority() -> WriteConcern {
        WriteConcern { w: Some(W::Tag("majority".to_owned())), ..WriteConcern::default() }
    }

    /// From a short text, as experiments have it: "w:0", "w:1,j:true", "w:majority,wtimeout:500", "j:true".
    pub fn parse(text: &str) -> Result<WriteConcern, String> {
        let mut concern = WriteConcern::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once(':').ok_or_else(|| format!("write concern \"{text}\""))?;
            let bad = || format!("write concern \"{text}\": bad value of {name}");
            match name.trim() {
                "w" => concern.w = Some(W::parse(value.trim())),
                "j" => concern.j = Some(value.trim().parse().map_err(|_| bad())?),
                "wtimeout" => concern.wtimeout_ms = Some(value.trim().parse().map_err(|_| bad())?),
                other => return Err(format!("write concern \"{text}\": unknown part {other}")),
            }
        }
        Ok(concern)
    }

    /// Whether the server answers at all: `w:0` without the journal wants no answer.
    pub fn acknowledged(&self) -> bool {
        self.w != Some(W::Nodes(0)) || self.j == Some(true)
    }

    /// Whether there is nothing to send.
    pub fn is_default(&self) -> bool {
        *self == WriteConcern::default()
    }

    /// Writes the field `writeConcern`, unless this is the default.
    pub fn append(&self, body: &mut DocWriter<'_, Vec<u8>>) {
        if !self.is_default() {
            self.fields(&mut body.document("writeConcern"));
        }
    }

    /// Adds the field to a command that is whole already, unless this is the default.
    pub fn append_to(&self, command: &mut DocBuf) {
        if !self.is_default() {
            command.append("writeConcern", DocBuf::build(|concern| self.fields(concern)).as_raw());
        }
    }

    fn fields(&self, concern: &mut DocWriter<'_, Vec<u8>>) {
        match &self.w {
            Some(W::Nodes(n)) => drop(concern.append("w", *n as i32)),
            Some(W::Tag(tag)) => drop(concern.append("w", tag.as_str())),
            None => {}
        }
        if let Some(j) = self.j {
            concern.append("j", j);
        }
        if let Some(ms) = self.wtimeout_ms {
            concern.append("wtimeout", ms as i64);
        }
    }
}

impl fmt::Display for WriteConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        match &self.w {
            Some(W::Nodes(n)) => parts.push(format!("w:{n}")),
            Some(W::Tag(tag)) => parts.push(format!("w:{tag}")),
            None => {}
        }
        if let Some(j) = self.j {
            parts.push(format!("j:{j}"));
        }
        if let Some(ms) = self.wtimeout_ms {
            parts.push(format!("wtimeout:{ms}"));
        }
        f.write_str(if parts.is_empty() { "default" } else { "" })?;
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts() {
        for (text, acknowledged) in
            [("w:0", false), ("w:1", true), ("w:0,j:true", true), ("w:majority,wtimeout:5", true)]
        {
            let concern = WriteConcern::parse(text).unwrap();
            assert_eq!(concern.to_string(), text);
            assert_eq!(concern.acknowledged(), acknowledged, "{text}");
        }
        assert!(WriteConcern::parse("w").is_err());
        assert!(WriteConcern::parse("w:1,j:perhaps").is_err());
        assert!(WriteConcern::parse("fast:1").is_err());
    }
}
