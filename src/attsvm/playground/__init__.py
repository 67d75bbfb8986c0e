"""A page to play with: tokens, scores and settings go in, the picture of training and of its SVM comes out.

The front end in `static` is one ES module against anywidget's model interface. It is shown by `attsvm play`
(:mod:`attsvm.playground.server`) and in notebooks (:mod:`attsvm.playground.widget`).
"""
