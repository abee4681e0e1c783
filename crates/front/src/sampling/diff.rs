//! What an update has changed of a document, for `config.sampledQueriesDiff`.

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Value};

/// Which fields differ: `"i"` for one that is new, `"u"` for one with another value, `"d"` for one that is gone; within documents, each of
/// theirs. `None`: none does.
pub fn inline_diff(before: RawDoc<'_>, after: RawDoc<'_>) -> Option<DocBuf> {
    let diff = DocBuf::build(|out| write(before, after, out));
    (!diff.as_raw().is_empty()).then_some(diff)
}

fn write(before: RawDoc<'_>, after: RawDoc<'_>, out: &mut DocWriter<'_, Vec<u8>>) {
    for field in before.iter() {
        let name = field.key();
        match (field.value(), after.element(name)) {
            (_, None) => _ = out.append(name, "d"),
            (_, Some(now)) if now.as_bytes() == field.as_bytes() => {}
            (Value::Document(before), Some(now)) if now.value().as_doc().is_some() => {
                let inner = now.value().as_doc().and_then(|after| inline_diff(before, after));
                inner.into_iter().for_each(|inner| _ = out.append(name, inner.as_raw()));
            }
            (_, Some(_)) => _ = out.append(name, "u"),
        }
    }
    for field in after.iter().filter(|field| before.element(field.key()).is_none()) {
        out.append(field.key(), "i");
    }
}

/// Whether the field at this path of a document has changed.
pub fn changes(diff: RawDoc<'_>, path: &str) -> bool {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    match (diff.get(name), rest) {
        (None, _) => false,
        (Some(Value::Document(inner)), Some(rest)) => changes(inner, rest),
        (Some(_), _) => true,
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    #[test]
    fn fields_are_new_other_or_gone() {
        let before = doc! { "_id": 1, "a": { "x": { "i": 1, "ii": 2 }, "y": 3 }, "b": [1], "c": 4, "e": {} };
        let after = doc! { "_id": 1, "a": { "x": { "i": 1, "ii": 5 }, "z": 3 }, "b": [1, 2], "d": 4, "e": 7 };
        let diff = inline_diff(before.as_raw(), after.as_raw()).unwrap();
        let expected =
            doc! { "a": { "x": { "ii": "u" }, "y": "d", "z": "i" }, "b": "u", "c": "d", "e": "u", "d": "i" };
        assert_eq!(diff, expected);
        for (path, changed) in
            [("a.x.ii", true), ("a.x.i", false), ("a.y.q", true), ("a", true), ("f", false), ("e.f", true)]
        {
            assert_eq!(changes(diff.as_raw(), path), changed, "{path}");
        }
        assert_eq!(inline_diff(before.as_raw(), before.as_raw()), None);
    }
}
