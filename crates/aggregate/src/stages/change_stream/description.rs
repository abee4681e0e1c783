//! `updateDescription`: what a `$v: 2` delta says, in dotted paths.

use sheaf_bson::{ArrayWriter, DocBuf, DocWriter, RawDoc, Value};

/// What an update changed.
#[derive(Default)]
pub struct Description {
    updated: DocBuf,
    removed: Vec<String>,
    truncated: Vec<(String, i64)>,
    /// Paths of which the text alone does not tell names from array indexes: their parts.
    ambiguous: Vec<(String, Vec<Part>)>,
}

/// One part of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// A field's name.
    Name(String),
    /// An index of an array.
    Index(i32),
}

impl Part {
    fn has_dot(&self) -> bool {
        matches!(self, Part::Name(name) if name.contains('.'))
    }

    fn is_numeric(&self) -> bool {
        match self {
            Part::Name(name) => is_index_text(name),
            Part::Index(_) => true,
        }
    }
}

fn is_index_text(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_digit())
        && (name == "0" || !name.starts_with('0'))
}

impl Description {
    /// Reads a delta (`o.diff`).
    pub fn of(delta: RawDoc<'_>) -> Self {
        let mut description = Description::default();
        description.object(delta, &mut Vec::new());
        description
    }

    /// Writes the fields; `expanded` adds `disambiguatedPaths`.
    pub fn write(&self, out: &mut DocWriter<'_, Vec<u8>>, expanded: bool) {
        out.append("updatedFields", &self.updated);
        let mut removed = out.array("removedFields");
        self.removed.iter().for_each(|path| _ = removed.push(path.as_str()));
        drop(removed);
        let mut truncated = out.array("truncatedArrays");
        for (field, size) in &self.truncated {
            let mut entry = truncated.document();
            entry.append("field", field);
            match i32::try_from(*size) {
                Ok(small) => entry.append("newSize", small),
                Err(_) => entry.append("newSize", *size),
            };
        }
        drop(truncated);
        if expanded {
            let mut paths = out.document("disambiguatedPaths");
            for (path, parts) in &self.ambiguous {
                write_parts(&mut paths.array(path), parts);
            }
        }
    }

    /// Notes a path that was touched and gives its text.
    fn path(&mut self, parts: &[Part]) -> String {
        let mut text = String::new();
        for part in parts {
            if !text.is_empty() {
                text.push('.');
            }
            match part {
                Part::Name(name) => text.push_str(name),
                Part::Index(at) => text.push_str(&at.to_string()),
            }
        }
        // A number that stands first cannot be an index; any later one may be an index or a name.
        let ambiguous = parts.iter().any(Part::has_dot) || parts.iter().skip(1).any(Part::is_numeric);
        if ambiguous && self.ambiguous.iter().all(|(known, _)| *known != text) {
            self.ambiguous.push((text.clone(), parts.to_vec()));
        }
        text
    }

    fn object(&mut self, delta: RawDoc<'_>, path: &mut Vec<Part>) {
        let section = |name: &str| delta.get(name).and_then(|v| v.as_doc()).unwrap_or(RawDoc::EMPTY);
        for gone in section("d").iter() {
            path.push(Part::Name(gone.key().to_owned()));
            let text = self.path(path);
            self.removed.push(text);
            path.pop();
        }
        for set in section("u").iter().chain(section("i").iter()) {
            path.push(Part::Name(set.key().to_owned()));
            let text = self.path(path);
            self.updated.append(&text, set.value());
            path.pop();
        }
        for inner in delta.iter() {
            let (Some(name), Value::Document(delta)) = (inner.key().strip_prefix('s'), inner.value()) else {
                continue;
            };
            path.push(Part::Name(name.to_owned()));
            self.nested(delta, path);
            path.pop();
        }
    }

    fn nested(&mut self, delta: RawDoc<'_>, path: &mut Vec<Part>) {
        if delta
            .iter()
            .next()
            .is_some_and(|first| first.key() == "a" && matches!(first.value(), Value::Bool(true)))
        {
            self.array(delta, path);
        } else {
            self.object(delta, path);
        }
    }

    fn array(&mut self, delta: RawDoc<'_>, path: &mut Vec<Part>) {
        for field in delta.iter().skip(1) {
            if field.key() == "l" {
                let text = self.path(path);
                self.truncated.push((text, field.value().as_exact_i64().unwrap_or(0)));
                continue;
            }
            let (action, digits) = field.key().split_at(1);
            let Ok(index) = digits.parse::<i32>() else { continue };
            path.push(Part::Index(index));
            match (action, field.value()) {
                ("s", Value::Document(delta)) => self.nested(delta, path),
                (_, value) => {
                    let text = self.path(path);
                    self.updated.append(&text, value);
                }
            }
            path.pop();
        }
    }
}

fn write_parts(out: &mut ArrayWriter<'_, Vec<u8>>, parts: &[Part]) {
    for part in parts {
        match part {
            Part::Name(name) => out.push(name.as_str()),
            Part::Index(at) => out.push(*at),
        };
    }
}
